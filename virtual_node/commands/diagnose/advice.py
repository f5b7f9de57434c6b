"""Maps messages of schedulers, provisioners and kubelets to next steps. Does no IO."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LOWER = "kubectl --kubeconfig LOWER"
_MISSING = {
    re.compile(r"(?i)storageclass(?:es)?(?:\.storage\.k8s\.io)? \"([^\"]+)\" not found"): (
        "create StorageClass {0} in the cluster that reports it; if it has another name in the lower cluster, map it "
        "in volumes.storageClasses of that cluster's configuration"
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
    re.compile(r"exceeded quota|failed quota"): (
        "request less, or raise the ResourceQuota of the lower namespace"
    ),
}
"""Next steps by pattern of messages about why a lower cluster's scheduler finds no node."""


def missing(text: str, *, namespace: str) -> list[str]:
    """Return next steps for missing objects that a message names; empty: it names none."""
    return _steps(_MISSING, text, namespace)


def steps(text: str, *, namespace: str) -> list[str]:
    """Return next steps for a message of a lower cluster; empty: none is known.

    Args:
        text: message of a condition or an event.
        namespace: the pod's namespace.
    """
    return _steps(_MISSING | _NODES, text, namespace)


def _steps(table: Mapping[re.Pattern[str], str], text: str, namespace: str) -> list[str]:
    found = (
        step.format(*match.groups(), namespace=namespace)
        for pattern, step in table.items()
        for match in pattern.finditer(text)
    )
    return list(dict.fromkeys(found))
