"""Rules about clusters and components: clocks, versions, expiring credentials, unread objects, faults of the health model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from clusterset.model import names
from virtual_node.certificates.expiry import LEGACY_TOKEN, UPPER, limits_of, span
from virtual_node.commands.inspect.facts import (
    COMPONENT_POD,
    DNS_SERVICE,
    ERROR,
    FOREIGN_POD,
    OPTIONAL,
    SERVICE_BACKEND,
    WAITING_POD,
    WARNING,
    Findings,
    InspectFacts,
    Subject,
)
from virtual_node.config import program
from virtual_node.examine.codes import Severity
from virtual_node.examine.facts import ClusterState, known
from virtual_node.examine.finding import Finding
from virtual_node.examine.health import health
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
_KINDS = {
    **dict.fromkeys((COMPONENT_POD, FOREIGN_POD, WAITING_POD), "Pod"),
    DNS_SERVICE: "Service",
    SERVICE_BACKEND: "EndpointSlice",
}
"""API kinds of those keys of ``ClusterFacts.objects`` that are not kinds."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_EXPIRY_STEPS = {
    "ClientCertificate": "issue a new client certificate for the kubeconfig",
    "Token": "issue a new token (virtual-node lower-cluster register); a virtual node renews it from then on",
    "ServingCertificate": "renew the server's certificate",
    "WebhookCA": "renew the CA certificate in the webhook's caBundle",
}


def clocks(facts: InspectFacts) -> Findings:
    """Yield clusters whose clock differs from this machine's; this also finds clocks that differ from each other."""
    for cluster in (facts.upper, *facts.lowers):
        skew = cluster.clock_skew
        if skew is None or abs(skew) <= _CLOCK_WARNING:
            continue
        yield Subject("clock", cluster.name, "Cluster", cluster.name).finding(
            ERROR if abs(skew) > _CLOCK_ERROR else WARNING,
            f"its clock is {span(timedelta(seconds=skew))} {'ahead of' if skew > 0 else 'behind'} ours",
            "let NTP set the clocks of this machine and the cluster",
        )


def versions(facts: InspectFacts) -> Findings:
    """Yield lower clusters with too much version skew, and virtual nodes that report an outdated version."""
    above = _minor(facts.upper.version)
    nodes = {node["metadata"]["name"]: node for node in facts.upper.of("Node")}
    for lower in facts.lowers:
        below = _minor(lower.version)
        if above and below and (above[0] != below[0] or abs(above[1] - below[1]) > _MINORS):
            yield Subject("version", lower.name, "Cluster", lower.name).warning(
                f"{lower.version} is more than {_MINORS} minor versions away from the upper {facts.upper.version}",
                f"upgrade the {'lower' if below < above else 'upper'} cluster",
            )
        for name in lower.nodes:
            kubelet_version = _kubelet_version(nodes.get(name, {}))
            if kubelet_version and lower.version and kubelet_version != lower.version:
                yield Subject("version", lower.name, "Node", name).warning(
                    f"reports kubeletVersion {kubelet_version}; its lower cluster is {lower.version}",
                    "does the virtual node's process run, and lead to this very cluster?",
                    transient=True,
                )


def lower_kubelets(facts: InspectFacts) -> Findings:
    """Yield lower nodes of a newer minor version than their API server, or of a version that is too old for it."""
    for lower in facts.lowers:
        server = _minor(lower.version)
        for node in lower.of("Node"):
            version = _kubelet_version(node)
            kubelet = _minor(version)
            if server and kubelet and not 0 <= server[1] - kubelet[1] <= _MINORS:
                yield Subject("version", lower.name, "Node", node["metadata"]["name"]).warning(
                    f"runs kubelet {version}, which its API server {lower.version} does not support",
                    f"upgrade the {'node' if kubelet < server else 'API server'}",
                )


def weak(facts: InspectFacts) -> Findings:
    """Yield connections on which credentials can be read or the API server be impersonated."""
    for cluster, what, step in facts.weaknesses:
        yield Subject("transport", cluster, "Kubeconfig", cluster).warning(what, step)


def expiring(facts: InspectFacts) -> Findings:
    """Yield credentials and certificates that expire soon or have expired."""
    for one in facts.expiries:
        if one.kind == LEGACY_TOKEN:
            yield Subject("expiry", one.cluster, one.kind, one.name).info(
                "the token never expires", "virtual-node lower-cluster register makes one that is renewed"
            )
            continue
        left = one.ends - facts.now
        warning, error = limits_of(facts.limits, one)
        if left >= warning:
            continue
        ended = left <= timedelta()
        yield Subject("expiry", one.cluster, one.kind, one.name).finding(
            ERROR if ended or left < error else WARNING,
            f"expired {span(left)} ago" if ended else f"expires in {span(left)}",
            _EXPIRY_STEPS.get(one.kind, ""),
        )


def _kubelet_version(node: Mapping[str, Any]) -> str:
    return ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or ""


def _minor(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def unread(facts: InspectFacts) -> Findings:
    """Yield clusters and kinds that could not be read, and an unknown identity of the upper cluster."""
    for cluster in (facts.upper, *facts.lowers):
        if cluster.error:
            yield Subject("unread", cluster.name, "Cluster", cluster.name).error(
                f"could not be read: {cluster.error}",
                f"{program.name('check')}, with the same flags, says more",
            )
            continue
        # Lists of one kind with different selectors fail for the same reason, so they are one finding.
        unread_kinds = {
            _KINDS.get(kind, kind): why for kind, why in cluster.unread.items() if kind not in OPTIONAL
        }
        for kind, why in sorted(unread_kinds.items()):
            yield Subject("unread", cluster.name, kind, "*").warning(
                f"could not be listed: {why}", "grant get and list; without these rights they are not checked"
            )
        if optional := [right for kind, right in OPTIONAL.items() if kind in cluster.unread]:
            yield Subject("unread", cluster.name, "Right", "*").info(
                f"some checks of workloads or webhooks did not run without these rights: {', '.join(optional)}",
                "grant these rights to the account of this command, if you want these checks",
            )
    if not facts.cluster_id and not facts.upper.error:
        yield Subject("unread", UPPER, "Namespace", "kube-system").warning(
            "could not be read, so owned objects in lower clusters cannot be recognized",
            "grant get on namespace kube-system, or give --cluster-id",
        )


_LABEL_COMPONENT = "app.kubernetes.io/component"
_LABEL_RELEASE = "app.kubernetes.io/version"
_SAME = "upgrade the older one: all components must have the same version"


def of_nodes(facts: InspectFacts) -> Findings:
    """Yield virtual nodes of another release than this command, because their translation may look like drift."""
    for node in facts.upper.of("Node"):
        labels = labels_of(node)
        if not is_virtual(node) or not facts.release:
            continue
        node_version = labels.get(names.LABEL_VERSION, "")
        name = node["metadata"]["name"]
        # Unconfigured virtual nodes without our version label are of other software, such as virtual-kubelet.
        if node_version != facts.release and (node_version or name in facts.virtual_nodes()):
            yield Subject("release", UPPER, "Node", name).warning(
                f"runs {f'version {node_version}' if node_version else 'an unknown version'}; "
                f"this command has version {facts.release}, and may report differences between the two "
                f"versions as drift",
                _SAME,
                transient=True,
            )


def of_components(facts: InspectFacts) -> Findings:
    """Yield namespaces whose components, by the chart's labels, run different releases."""
    found: dict[str, dict[str, set[str]]] = {}
    for pod in facts.upper.of(COMPONENT_POD):
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
            yield Subject("release", UPPER, "Namespace", namespace).warning(
                f"its components run different versions: {versions}",
                f"kubectl -n {namespace} get deployments: is a rollout stuck? Otherwise {_SAME}",
                transient=True,
            )


def faults(facts: InspectFacts) -> Findings:
    """Yield a finding for every fault of the health model."""
    for fault in health(_seen(facts)).faults:
        cluster = UPPER if fault.kind in {"Node", "Installation", "Configuration"} else fault.cluster or UPPER
        yield Subject(fault.code.check, cluster, fault.kind, fault.name or fault.kind.lower()).finding(
            fault.severity.value, _message(fault), fault.next_step, transient=fault.severity is Severity.ERROR
        )


def _message(fault: Finding) -> str:
    more = fault.count - 1
    return f"{fault.cause} (and {more} more such pod{'s' * (more > 1)})" if more else fault.cause


def _seen(facts: InspectFacts) -> Snapshot:
    """Return the health model's facts from what was read of the upper cluster."""
    upper = facts.upper
    nodes = [node for node in upper.of("Node") if is_virtual(node)]
    names = {node["metadata"]["name"] for node in nodes}
    pods = (pod for pod in upper.of("Pod") if pod["spec"].get("nodeName") in names)
    return known(
        # Leases and conditions have timestamps by the upper cluster's clock.
        facts.now + timedelta(seconds=upper.clock_skew or 0.0),
        nodes=nodes if upper.knows("Node") else None,
        leases={one["metadata"]["name"]: one for one in upper.of("Lease")} if upper.knows("Lease") else None,
        bound=pods if upper.knows("Pod") else None,
        waiting=upper.of(WAITING_POD) if upper.knows(WAITING_POD) else None,
        components=upper.of(COMPONENT_POD) if upper.knows(COMPONENT_POD) else None,
        swarms=upper.of("Swarm"),
        clusters=[ClusterState(name=one.name, nodes=tuple(one.nodes)) for one in facts.lowers],
    )
