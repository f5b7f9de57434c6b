"""Rules about clusters and components: what must be right before the start, clocks, versions, credentials, connections, unread objects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from clusterset.model import names
from clusterset.model.declared_features import minor_version
from virtual_node.config import program
from virtual_node.examine import clusters, facts
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.components import LABEL_COMPONENT
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.expiry import severity_of, span
from virtual_node.examine.finding import UPPER, Findings
from virtual_node.examine.objects import is_deleting, is_virtual, labels_of
from virtual_node.examine.snapshot import Snapshot, View

_CLOCK_WARNING = 5.0
"""Maximum seconds between two clocks, as in ``check``; with more, leases, tokens and events are misleading."""
_CLOCK_ERROR = 30.0
"""Seconds, close to the 40 s of a virtual node's Lease: with more, nodes become NotReady, tokens are not valid yet."""
_MINORS = 3
"""Maximum skew of a kubelet in minor versions: https://kubernetes.io/releases/version-skew-policy/#kubelet

A virtual node is a kubelet of the upper cluster and reports the lower cluster's version.
"""
_EXPIRY_STEPS = {
    "ClientCertificate": "issue a new client certificate for the kubeconfig; for a tunnel: virtual-node lower-cluster join",
    "Token": "issue a new token (virtual-node lower-cluster register); a virtual node renews it from then on",
    "ServingCertificate": "renew the server's certificate",
    "WebhookCA": "renew the CA certificate in the webhook's caBundle",
}


@rule(Code.CLOCK_SKEW, where=[clusters.CLOCK_SKEW], level=Level.CLUSTER)
def clocks(_snapshot: Snapshot, cluster: View) -> Findings:
    """Yield clusters whose clock differs from this machine's; this also finds clocks that differ from each other."""
    skew = cluster[clusters.CLOCK_SKEW]
    if abs(skew) > _CLOCK_WARNING:
        cause = f"its clock is {span(timedelta(seconds=skew))} {'ahead of' if skew > 0 else 'behind'} ours"
        step = "let NTP set the clocks of this machine and the cluster"
        severity = Severity.ERROR if abs(skew) > _CLOCK_ERROR else Severity.WARNING
        yield cluster.finding(Code.CLOCK_SKEW, "Cluster", cluster.name, cause, step, severity=severity)


@rule(Code.VERSION_SKEW, where=[clusters.VERSION, clusters.SETTINGS], level=Level.LOWER)
def versions(snapshot: Snapshot, lower: View) -> Findings:
    """Yield that a lower cluster has too much version skew, and virtual nodes that report an outdated version."""
    upper_version, version = snapshot.upper.get(clusters.VERSION) or "", lower[clusters.VERSION]
    above, below = minor_version(upper_version), minor_version(version)
    if above and below and (above[0] != below[0] or abs(above[1] - below[1]) > _MINORS):
        cause = f"{version} is more than {_MINORS} minor versions away from the upper {upper_version}"
        step = f"upgrade the {'lower' if below < above else 'upper'} cluster"
        yield lower.finding(Code.VERSION_SKEW, "Cluster", lower.name, cause, step)
    nodes = {node["metadata"]["name"]: node for node in snapshot.upper.of("Node")}
    for name in lower[clusters.SETTINGS].nodes:
        kubelet_version = _kubelet_version(nodes.get(name, {}))
        if kubelet_version and version and kubelet_version != version:
            cause = f"reports kubeletVersion {kubelet_version}; its lower cluster is {version}"
            step = "does the virtual node's process run, and lead to this very cluster?"
            yield lower.finding(Code.VERSION_SKEW, "Node", name, cause, step, transient=True)


@rule(Code.VERSION_SKEW, where=[clusters.VERSION, clusters.SETTINGS], level=Level.LOWER)
def lower_kubelets(_snapshot: Snapshot, lower: View) -> Findings:
    """Yield lower nodes of a newer minor version than their API server, or of a version that is too old for it."""
    server = minor_version(lower[clusters.VERSION])
    for node in lower.of("Node"):
        kubelet_version = _kubelet_version(node)
        kubelet = minor_version(kubelet_version)
        if server and kubelet and not 0 <= server[1] - kubelet[1] <= _MINORS:
            cause = f"runs kubelet {kubelet_version}, which its API server {lower[clusters.VERSION]} does not support"
            step = f"upgrade the {'node' if kubelet < server else 'API server'}"
            yield lower.finding(Code.VERSION_SKEW, "Node", node["metadata"]["name"], cause, step)


@rule(Code.CONNECTION_WEAK, where=[clusters.WEAKNESSES], level=Level.CLUSTER)
def weak(_snapshot: Snapshot, cluster: View) -> Findings:
    """Yield connections on which credentials can be read or the API server be impersonated."""
    for what, step in cluster[clusters.WEAKNESSES]:
        yield cluster.finding(Code.CONNECTION_WEAK, "Kubeconfig", cluster.name, what, step)


@rule(Code.CREDENTIAL_EXPIRES, level=Level.PATH)
def credentials(snapshot: Snapshot) -> Findings:
    """Yield credentials and certificates that expire soon or have expired."""
    for one in (expiry for cluster in snapshot.clusters for expiry in cluster.get(clusters.EXPIRIES) or ()):
        severity = severity_of(clusters.limits(snapshot), one, snapshot.now)
        if severity is None:
            continue
        left = one.ends - snapshot.now
        cause = f"expires in {span(left)}" if left > timedelta() else f"expired {span(left)} ago"
        step = _EXPIRY_STEPS.get(one.kind, "")
        if severity is Severity.INFO:
            cause, step = (
                "the token never expires",
                "virtual-node lower-cluster register makes one that is renewed",
            )
        yield View(one.cluster).finding(Code.CREDENTIAL_EXPIRES, one.kind, one.name, cause, step, severity)


def _kubelet_version(node: Mapping[str, Any]) -> str:
    return ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or ""


@rule(Code.CLUSTER_UNREAD, Code.KIND_UNREAD, Code.RIGHT_MISSING, level=Level.READING)
def unread(snapshot: Snapshot) -> Findings:
    """Yield clusters and kinds that could not be read, and an unknown identity of the upper cluster."""
    for cluster in snapshot.clusters:
        if cluster.error:
            cause = f"could not be read: {cluster.error}"
            step = f"{program.name('check')}, with the same flags, says more"
            yield cluster.finding(Code.CLUSTER_UNREAD, "Cluster", cluster.name, cause, step)
            continue
        # Lists of one kind with different selectors fail for the same reason, so they are one finding.
        unread_kinds = {fact.kind: why for fact, why in cluster.unread.items() if fact.kind}
        for kind, why in sorted(unread_kinds.items()):
            if kind in clusters.OPTIONAL:
                continue
            cause = f"could not be listed: {why}"
            step = "grant get and list; without these rights they are not checked"
            yield cluster.finding(Code.KIND_UNREAD, kind, "*", cause, step)
        if optional := [right for kind, right in clusters.OPTIONAL.items() if kind in unread_kinds]:
            cause = f"some checks of workloads or webhooks did not run without these rights: {', '.join(optional)}"
            step = "grant these rights to the account of this command, if you want these checks"
            yield cluster.finding(Code.RIGHT_MISSING, "Right", "*", cause, step)
    if not snapshot.upper.get(clusters.IDENTITY) and not snapshot.upper.error:
        cause = "could not be read, so owned objects in lower clusters cannot be recognized"
        step = "grant get on namespace kube-system, or give --cluster-id"
        yield snapshot.upper.finding(Code.KIND_UNREAD, "Namespace", "kube-system", cause, step)


_LABEL_RELEASE = "app.kubernetes.io/version"
_SAME = "upgrade the older one: all components must have the same version"


@rule(Code.RELEASE_SKEW, needs=[clusters.RELEASE], level=Level.PATH)
def of_nodes(snapshot: Snapshot) -> Findings:
    """Yield virtual nodes of another release than this command, because their translation may look like drift."""
    release = snapshot.upper[clusters.RELEASE]
    for node in filter(is_virtual, snapshot.upper.of("Node")) if release else ():
        node_version, name = labels_of(node).get(names.LABEL_VERSION, ""), node["metadata"]["name"]
        # Unconfigured virtual nodes without our version label are of other software, such as virtual-kubelet.
        if node_version != release and (node_version or name in clusters.virtual_nodes(snapshot)):
            cause = (
                f"runs {f'version {node_version}' if node_version else 'an unknown version'}; "
                f"this command has version {release}, and may report differences between the two "
                f"versions as drift"
            )
            yield snapshot.upper.finding(Code.RELEASE_SKEW, "Node", name, cause, _SAME, transient=True)


@rule(Code.RELEASE_SKEW, needs=[clusters.RELEASE, facts.COMPONENTS], level=Level.PATH)
def of_components(snapshot: Snapshot) -> Findings:
    """Yield namespaces whose components, by the chart's labels, run different releases."""
    found: dict[str, dict[str, set[str]]] = {}
    for pod in snapshot.upper.of(facts.COMPONENTS):
        labels = labels_of(pod)
        if not is_deleting(pod) and (release := labels.get(_LABEL_RELEASE)):
            component = labels.get(LABEL_COMPONENT) or pod["metadata"]["name"]
            releases = found.setdefault(pod["metadata"]["namespace"], {})
            releases.setdefault(release, set()).add(component)
    for namespace, releases in sorted(found.items()):
        if len(releases) > 1:
            versions = "; ".join(
                f"{release}: {', '.join(sorted(them))}" for release, them in sorted(releases.items())
            )
            cause = f"its components run different versions: {versions}"
            step = f"kubectl -n {namespace} get deployments: is a rollout stuck? Otherwise {_SAME}"
            yield snapshot.upper.finding(
                Code.RELEASE_SKEW, "Namespace", namespace, cause, step, transient=True
            )


_OLDEST = (1, 24)


@rule(Code.VERSION_UNSUPPORTED, where=[clusters.VERSION], level=Level.CLUSTER)
def supported(_snapshot: Snapshot, cluster: View) -> Findings:
    """Yield that a cluster has a version of Kubernetes that is too old."""
    if (minor := minor_version(cluster[clusters.VERSION])) and minor < _OLDEST:
        cause = f"{cluster[clusters.VERSION]} is too old"
        step = f"Kubernetes {_OLDEST[0]}.{_OLDEST[1]} or newer is needed"
        yield cluster.sentence(Code.VERSION_UNSUPPORTED, "Cluster", cluster.name, cause, step)


@rule(Code.ACCOUNT_RIGHT_MISSING, where=[facts.RIGHTS], level=Level.CLUSTER)
def rights(_snapshot: Snapshot, cluster: View) -> Findings:
    """Yield resources to which an account lacks rights."""
    for each in cluster[facts.RIGHTS]:
        if each.fix:
            cause = f"the account lacks a right to {each.resource}"
            yield cluster.sentence(Code.ACCOUNT_RIGHT_MISSING, "Right", each.resource, cause, each.fix)


@rule(Code.IDENTITY_UNKNOWN, level=Level.PATH)
def identity(snapshot: Snapshot) -> Findings:
    """Yield that the identity of the upper cluster cannot be read."""
    if why := snapshot.upper.unread.get(facts.UID):
        step = "grant get on namespace kube-system, or give --cluster-id"
        yield snapshot.upper.sentence(Code.IDENTITY_UNKNOWN, "Namespace", "kube-system", why, step)


@rule(Code.SAME_CLUSTER, needs=[facts.UID], where=[facts.UID], level=Level.LOWER)
def same_cluster(snapshot: Snapshot, lower: View) -> Findings:
    """Yield that a lower cluster is the upper one: its pods would be mirrored onto themselves."""
    if lower[facts.UID] == snapshot.upper[facts.UID]:
        step = "its kubeconfig leads to the upper cluster: give that of another cluster"
        yield lower.sentence(Code.SAME_CLUSTER, "Cluster", lower.name, lower[facts.UID], step)


@rule(Code.NODE_NAME_TAKEN, needs=[facts.NODE_NAMES], level=Level.PATH)
def node_names(snapshot: Snapshot) -> Findings:
    """Yield names of virtual nodes that real nodes have."""
    for name, why in snapshot.upper[facts.NODE_NAMES].items():
        if why:
            yield snapshot.upper.sentence(Code.NODE_NAME_TAKEN, "Node", name, name, why)


@rule(Code.CLUSTER_PROFILE_REFUSED, level=Level.PATH)
def profiles(snapshot: Snapshot) -> Findings:
    """Yield ClusterProfiles that are not used, or that they cannot be read."""
    code, upper = Code.CLUSTER_PROFILE_REFUSED, snapshot.upper
    if why := upper.unread.get(facts.PROFILES):
        yield upper.finding(code, "ClusterProfile", "*", "cannot be read", why)
    for key, why in (upper.get(facts.PROFILES) or {}).items():
        step = "correct it; it is read again by itself"
        yield upper.finding(code, "ClusterProfile", key, f"is not used: {why}", step)


@rule(Code.SETTINGS_DIFFER, needs=[facts.DIFFERENCES], level=Level.PATH)
def differences(snapshot: Snapshot) -> Findings:
    """Yield settings that the multi-scheduler's own file gives differently."""
    step = "give both programs the same file, or correct the value"
    for path, differing in snapshot.upper[facts.DIFFERENCES].items():
        for each in differing:
            cause = f"{each.field}: {each.one}, in {path}: {each.other}"
            place = next((one for one in snapshot.lowers if one.name == each.cluster), snapshot.upper)
            yield place.sentence(Code.SETTINGS_DIFFER, "Cluster", each.cluster or UPPER, cause, step)


@rule(Code.SERVICE_RANGE_MISSING, where=[facts.SERVICE_RANGES], level=Level.LOWER)
def service_ranges(_snapshot: Snapshot, lower: View) -> Findings:
    """Yield that a lower cluster cannot give Services the addresses of the upper cluster."""
    ranges = lower[facts.SERVICE_RANGES]
    if missing := [each for each, fit in ranges.fits.items() if fit is False]:
        outside = ", ".join(missing[:3])
        cause = f"{', '.join(ranges.own[:3]) or 'its range'} does not contain {outside} of the upper cluster"
        step = (
            f"give the lower cluster a Service range with {outside}: a ServiceCIDR object (Kubernetes 1.33 or newer), or "
            "--service-cluster-ip-range of its kube-apiserver; or set services.clusterIP: own"
        )
        yield lower.sentence(Code.SERVICE_RANGE_MISSING, "Cluster", lower.name, cause, step)
