"""Rules about clusters and components: clocks, versions, expiring credentials, weak connections, unread objects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery.versions import minor_version
from virtual_node.config import program
from virtual_node.examine.clusters import (
    CLOCK_SKEW,
    EXPIRIES,
    IDENTITY,
    OPTIONAL,
    RELEASE,
    SETTINGS,
    VERSION,
    WEAKNESSES,
    limits,
    virtual_nodes,
)
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.expiry import LEGACY_TOKEN, limits_of, span
from virtual_node.examine.facts import COMPONENTS
from virtual_node.examine.finding import UPPER, Findings, finding
from virtual_node.examine.objects import is_deleting, is_virtual, labels_of
from virtual_node.examine.snapshot import Snapshot

_CLOCK_WARNING = 5.0
"""Maximum seconds between two clocks, as in ``check``; with more, leases, tokens and events are misleading."""
_CLOCK_ERROR = 30.0
"""Seconds, close to the 40 s of a virtual node's Lease: with more, nodes become NotReady, tokens are not valid yet."""
_MINORS = 3
"""Maximum skew of a kubelet in minor versions: https://kubernetes.io/releases/version-skew-policy/#kubelet

A virtual node is a kubelet of the upper cluster and reports the lower cluster's version.
"""
_EXPIRY_STEPS = {
    "ClientCertificate": "issue a new client certificate for the kubeconfig",
    "Token": "issue a new token (virtual-node lower-cluster register); a virtual node renews it from then on",
    "ServingCertificate": "renew the server's certificate",
    "WebhookCA": "renew the CA certificate in the webhook's caBundle",
}


@rule(Code.CLOCK_SKEW, level=Level.PATH)
def clocks(snapshot: Snapshot) -> Findings:
    """Yield clusters whose clock differs from this machine's; this also finds clocks that differ from each other."""
    for cluster in snapshot.clusters:
        skew = cluster.get(CLOCK_SKEW)
        if skew is None or abs(skew) <= _CLOCK_WARNING:
            continue
        cause = f"its clock is {span(timedelta(seconds=skew))} {'ahead of' if skew > 0 else 'behind'} ours"
        step = "let NTP set the clocks of this machine and the cluster"
        severity = Severity.ERROR if abs(skew) > _CLOCK_ERROR else Severity.WARNING
        yield finding(Code.CLOCK_SKEW, cluster.name, "Cluster", cluster.name, cause, step, severity=severity)


@rule(Code.VERSION_SKEW, level=Level.CLUSTERS)
def versions(snapshot: Snapshot) -> Findings:
    """Yield lower clusters with too much version skew, and virtual nodes that report an outdated version."""
    upper_version = snapshot.upper.get(VERSION) or ""
    above = minor_version(upper_version)
    nodes = {node["metadata"]["name"]: node for node in snapshot.upper.of("Node")}
    for lower in snapshot.lowers:
        version = lower.get(VERSION) or ""
        below = minor_version(version)
        if above and below and (above[0] != below[0] or abs(above[1] - below[1]) > _MINORS):
            cause = f"{version} is more than {_MINORS} minor versions away from the upper {upper_version}"
            step = f"upgrade the {'lower' if below < above else 'upper'} cluster"
            yield finding(Code.VERSION_SKEW, lower.name, "Cluster", lower.name, cause, step)
        for name in lower[SETTINGS].nodes:
            kubelet_version = _kubelet_version(nodes.get(name, {}))
            if kubelet_version and version and kubelet_version != version:
                cause = f"reports kubeletVersion {kubelet_version}; its lower cluster is {version}"
                step = "does the virtual node's process run, and lead to this very cluster?"
                yield finding(Code.VERSION_SKEW, lower.name, "Node", name, cause, step, transient=True)


@rule(Code.VERSION_SKEW, level=Level.CLUSTERS)
def lower_kubelets(snapshot: Snapshot) -> Findings:
    """Yield lower nodes of a newer minor version than their API server, or of a version that is too old for it."""
    for lower in snapshot.lowers:
        version = lower.get(VERSION) or ""
        server = minor_version(version)
        for node in lower.of("Node"):
            kubelet_version = _kubelet_version(node)
            kubelet = minor_version(kubelet_version)
            if server and kubelet and not 0 <= server[1] - kubelet[1] <= _MINORS:
                cause = f"runs kubelet {kubelet_version}, which its API server {version} does not support"
                step = f"upgrade the {'node' if kubelet < server else 'API server'}"
                yield finding(Code.VERSION_SKEW, lower.name, "Node", node["metadata"]["name"], cause, step)


@rule(Code.CONNECTION_WEAK, level=Level.PATH)
def weak(snapshot: Snapshot) -> Findings:
    """Yield connections on which credentials can be read or the API server be impersonated."""
    for cluster in snapshot.clusters:
        for what, step in cluster.get(WEAKNESSES) or ():
            yield finding(Code.CONNECTION_WEAK, cluster.name, "Kubeconfig", cluster.name, what, step)


@rule(Code.CREDENTIAL_EXPIRES, level=Level.CLUSTERS)
def credentials(snapshot: Snapshot) -> Findings:
    """Yield credentials and certificates that expire soon or have expired."""
    for one in (expiry for cluster in snapshot.clusters for expiry in cluster.get(EXPIRIES) or ()):
        if one.kind == LEGACY_TOKEN:
            step = "virtual-node lower-cluster register makes one that is renewed"
            yield finding(
                Code.CREDENTIAL_EXPIRES,
                one.cluster,
                one.kind,
                one.name,
                "the token never expires",
                step,
                severity=Severity.INFO,
            )
            continue
        left = one.ends - snapshot.now
        warning, error = limits_of(limits(snapshot), one)
        if left >= warning:
            continue
        ended = left <= timedelta()
        cause = f"expired {span(left)} ago" if ended else f"expires in {span(left)}"
        step = _EXPIRY_STEPS.get(one.kind, "")
        severity = Severity.ERROR if ended or left < error else Severity.WARNING
        yield finding(
            Code.CREDENTIAL_EXPIRES, one.cluster, one.kind, one.name, cause, step, severity=severity
        )


def _kubelet_version(node: Mapping[str, Any]) -> str:
    return ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or ""


@rule(Code.CLUSTER_UNREAD, Code.KIND_UNREAD, Code.RIGHT_MISSING, level=Level.READING)
def unread(snapshot: Snapshot) -> Findings:
    """Yield clusters and kinds that could not be read, and an unknown identity of the upper cluster."""
    for cluster in snapshot.clusters:
        if cluster.error:
            cause = f"could not be read: {cluster.error}"
            step = f"{program.name('check')}, with the same flags, says more"
            yield finding(Code.CLUSTER_UNREAD, cluster.name, "Cluster", cluster.name, cause, step)
            continue
        # Lists of one kind with different selectors fail for the same reason, so they are one finding.
        unread_kinds = {fact.kind: why for fact, why in cluster.unread.items() if fact.kind}
        for kind, why in sorted(unread_kinds.items()):
            if kind in OPTIONAL:
                continue
            cause = f"could not be listed: {why}"
            step = "grant get and list; without these rights they are not checked"
            yield finding(Code.KIND_UNREAD, cluster.name, kind, "*", cause, step)
        if optional := [right for kind, right in OPTIONAL.items() if kind in unread_kinds]:
            cause = f"some checks of workloads or webhooks did not run without these rights: {', '.join(optional)}"
            step = "grant these rights to the account of this command, if you want these checks"
            yield finding(Code.RIGHT_MISSING, cluster.name, "Right", "*", cause, step)
    if not snapshot.upper.get(IDENTITY) and not snapshot.upper.error:
        cause = "could not be read, so owned objects in lower clusters cannot be recognized"
        step = "grant get on namespace kube-system, or give --cluster-id"
        yield finding(Code.KIND_UNREAD, UPPER, "Namespace", "kube-system", cause, step)


_LABEL_COMPONENT = "app.kubernetes.io/component"
_LABEL_RELEASE = "app.kubernetes.io/version"
_SAME = "upgrade the older one: all components must have the same version"


@rule(Code.RELEASE_SKEW, level=Level.CLUSTERS)
def of_nodes(snapshot: Snapshot) -> Findings:
    """Yield virtual nodes of another release than this command, because their translation may look like drift."""
    release = snapshot.upper.get(RELEASE)
    for node in snapshot.upper.of("Node"):
        labels = labels_of(node)
        if not is_virtual(node) or not release:
            continue
        node_version = labels.get(names.LABEL_VERSION, "")
        name = node["metadata"]["name"]
        # Unconfigured virtual nodes without our version label are of other software, such as virtual-kubelet.
        if node_version != release and (node_version or name in virtual_nodes(snapshot)):
            cause = (
                f"runs {f'version {node_version}' if node_version else 'an unknown version'}; "
                f"this command has version {release}, and may report differences between the two "
                f"versions as drift"
            )
            yield finding(Code.RELEASE_SKEW, UPPER, "Node", name, cause, _SAME, transient=True)


@rule(Code.RELEASE_SKEW, needs=[COMPONENTS], level=Level.CLUSTERS)
def of_components(snapshot: Snapshot) -> Findings:
    """Yield namespaces whose components, by the chart's labels, run different releases."""
    found: dict[str, dict[str, set[str]]] = {}
    for pod in snapshot.upper.of(COMPONENTS):
        labels = labels_of(pod)
        if not is_deleting(pod) and (release := labels.get(_LABEL_RELEASE)):
            component = labels.get(_LABEL_COMPONENT) or pod["metadata"]["name"]
            releases = found.setdefault(pod["metadata"]["namespace"], {})
            releases.setdefault(release, set()).add(component)
    for namespace, releases in sorted(found.items()):
        if len(releases) > 1:
            versions = "; ".join(
                f"{release}: {', '.join(sorted(them))}" for release, them in sorted(releases.items())
            )
            cause = f"its components run different versions: {versions}"
            step = f"kubectl -n {namespace} get deployments: is a rollout stuck? Otherwise {_SAME}"
            yield finding(Code.RELEASE_SKEW, UPPER, "Namespace", namespace, cause, step, transient=True)
