"""What messages of schedulers, provisioners, kubelets and runtimes mean: codes and next steps by their texts. Does no IO."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from virtual_node.examine.codes import Code

_UNSCHEDULABLE = {
    re.compile(r"(?<!\d)(\d{1,9}) Insufficient cpu"): Code.INSUFFICIENT_CPU,
    re.compile(r"(?<!\d)(\d{1,9}) Insufficient memory"): Code.INSUFFICIENT_MEMORY,
    re.compile(
        r"(?<!\d)(\d{1,9}) (?:Insufficient (?!cpu|memory)|Too many pods)"
    ): Code.INSUFFICIENT_RESOURCES,
    re.compile(
        r"(?<!\d)(\d{1,9}) node\(s\) (?:had volume node affinity|didn't find available persistent|exceed max volume|"
        r"unavailable due to one or more pvc)|unbound immediate PersistentVolumeClaims|"
        r"persistentvolumeclaim \S{1,253} (?:not found|is being deleted)|which lower cluster"
    ): Code.VOLUME,
    re.compile(
        r"(?<!\d)(\d{1,9}) node\(s\) didn't (?:match|have free ports|satisfy existing pods)"
    ): Code.AFFINITY,
    re.compile(r"(?<!\d)(\d{1,9}) node\(s\) had (?:untolerated )?taint"): Code.TAINT,
    re.compile(r"exceeded quota|failed quota"): Code.QUOTA,
    re.compile(r"(?<!\d)(\d{1,9}) node\(s\) were unschedulable"): Code.CORDONED,
}
"""Codes by pattern of a reason in a scheduler's message; the group is its number of nodes. If numbers are equal,
the first code is used."""

SCHEDULING = frozenset({Code.UNSCHEDULABLE, *_UNSCHEDULABLE.values()})
"""All codes of ``unschedulable``."""


def unschedulable(message: str) -> Code:
    """Return the code for the reason in a scheduler's message that excludes the most nodes."""
    reasons, counts = message.partition("preemption:")[0], Counter[Code]()
    for pattern, code in _UNSCHEDULABLE.items():
        for found in pattern.finditer(reasons):
            counts[code] += int(found[1]) if found.groups() and found[1] else 1
    return counts.most_common(1)[0][0] if counts else Code.UNSCHEDULABLE


_IMAGE = {
    # In this order, because a network error may contain any other text, and a refusal "does not exist".
    re.compile(
        r"(?i)dial tcp|no such host|i/o timeout|connection (?:refused|reset)|TLS handshake|x509:|deadline exceeded|"
        r"network is unreachable|server misbehaving|proxyconnect|\bEOF\b"
    ): Code.IMAGE_NETWORK,
    re.compile(
        r"(?i)unauthorized|access denied|authorization failed|\bdenied\b|forbidden|no basic auth|\b40[13]\b|"
        r"authentication required"
    ): Code.IMAGE_AUTH,
    re.compile(r"(?i)not found|manifest unknown|does not exist|\b404\b"): Code.IMAGE_NOT_FOUND,
}


def image(message: str) -> Code:
    """Return the code for a container runtime's message about an image that it cannot pull."""
    return next((code for pattern, code in _IMAGE.items() if pattern.search(message)), Code.IMAGE_PULL)


NAMESPACE = re.compile(
    r"Namespace (\S{1,253}) exists in lower cluster (\S{1,253}) and was not created by virtual-node"
)
"""In the message about an existing lower namespace that is not adopted (``clusterset.admission``)."""
_LOWER = "kubectl --kubeconfig LOWER"
_MISSING = {
    re.compile(r"(?i)storageclass(?:es)?(?:\.storage\.k8s\.io)? \"([^\"]+)\" not found"): (
        "create StorageClass {0} in the cluster that reports it; if it has another name in the lower cluster, map it "
        "in volumes.storageClasses of that cluster's configuration"
    ),
    re.compile(r"Lower cluster (\S{1,253}) has no StorageClass ([^\s,]{1,253})"): (
        "create StorageClass {1} in lower cluster {0}, or map it to a class there: volumes.storageClasses of {0}"
    ),
    re.compile(r"(?i)(persistentvolumeclaim|configmap|secret) \"([^\"]+)\" not found"): (
        "create {0} {1} in namespace {namespace} of the upper cluster; the pod starts by itself"
    ),
    re.compile(r"is bound to volume .* which lower cluster"): (
        "let the scheduler choose the node that has the volume: remove nodeName and selectors of others"
    ),
}
"""Next steps by pattern of messages about missing objects that a pod needs; ``{0}`` is the pattern's first group."""
_NODES = {
    re.compile(r"Insufficient ([\w./-]*[\w/-])"): (
        "request less {0}, or add a node with more to a lower cluster"
    ),
    re.compile(r"Too many pods"): "add a node to a lower cluster, or raise maxPods of its nodes",
    re.compile(r"didn't match Pod's node affinity/selector"): (
        "compare the pod's selectors (annotation clusterSelector) with the labels of lower nodes: "
        f"{_LOWER} get nodes --show-labels"
    ),
    re.compile(r"untolerated taint\(?s?\)? \{([^:}]+)"): (
        "tolerate taint {0} in the pod's template, or remove it from a lower node"
    ),
    re.compile(r"node\(s\) were unschedulable"): f"{_LOWER} get nodes; {_LOWER} uncordon NODE",
    re.compile(r"the lower cluster has no nodes"): f"add nodes to the lower cluster: {_LOWER} get nodes",
    re.compile(r"cannot be looked into"): (
        "correct the multi-scheduler's kubeconfig or rights for that lower cluster"
    ),
    re.compile(r"virtual node (\S{1,253}) \([^)]{0,400}\) belongs to no lower cluster"): (
        "write virtual node {0} into nodes of its cluster in the multi-scheduler's configuration (with the chart: add the "
        "cluster to virtualNode.clusters), or set unknownNodes: Pass"
    ),
    NAMESPACE: (
        "create the pod in a namespace that lower cluster {1} does not have (kubectl create namespace NAME), or let the "
        "administrator add {0} to namespaces.adopt of {1}"
    ),
    re.compile(r"exceeded quota|failed quota"): (
        "request less, or raise the ResourceQuota of the lower namespace"
    ),
    # The texts of clusterset.admission.
    re.compile(
        r"does not take the pod: (\w{1,63}): (\S{1,253}) is .{0,700}?\(set by (clusters\[[^\]]{1,253}\]\.policy)"
    ): ("change {1} in the pod's template, or let the administrator allow the value: {2}.{0}"),
    re.compile(r"Lower cluster (\S{1,253}) takes no pods of namespace (\S{1,253})"): (
        "use another namespace, or let the administrator add {1} to namespaces.allowed of {0}"
    ),
    re.compile(r"Lower cluster (\S{1,253}) does not take pods with these labels"): (
        "give the pod's template the labels in podSelector of {0}, or let the administrator change podSelector"
    ),
}
"""Next steps by pattern of messages about why a lower cluster's scheduler finds no node."""


def missing_steps(text: str, *, namespace: str) -> list[str]:
    """Return next steps for missing objects that a message names; empty: it names none."""
    return _steps(_MISSING, text, namespace)


def next_steps(text: str, *, namespace: str) -> list[str]:
    """Return next steps for a message of a lower cluster about a pod in a namespace; empty: none is known."""
    return _steps(_MISSING | _NODES, text, namespace)


def _steps(table: Mapping[re.Pattern[str], str], text: str, namespace: str) -> list[str]:
    found = (
        step.format(*match.groups(), namespace=namespace)
        for pattern, step in table.items()
        for match in pattern.finditer(text)
    )
    return list(dict.fromkeys(found))
