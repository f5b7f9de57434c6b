"""Maps messages of schedulers, provisioners and kubelets to next steps. Does no IO."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_LOWER = "kubectl --kubeconfig LOWER"
_Table = Sequence[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]]]
_MISSING: _Table = (
    (
        re.compile(r"storageclass(?:es)?(?:\.storage\.k8s\.io)? \"([^\"]+)\" not found", re.IGNORECASE),
        lambda found, _: (
            f"create StorageClass {found[1]} in the cluster that reports it; if it has another name in the lower "
            "cluster, map it in volumes.storageClasses of that cluster's configuration"
        ),
    ),
    (
        re.compile(r"(persistentvolumeclaim|configmap|secret) \"([^\"]+)\" not found", re.IGNORECASE),
        lambda found, namespace: (
            f"create {found[1]} {found[2]} in namespace {namespace} of the upper cluster; "
            "the pod starts by itself"
        ),
    ),
    (
        re.compile(r"is bound to volume .* which lower cluster"),
        lambda _found, _: (
            "let the scheduler choose the node that has the volume: remove nodeName and selectors of others"
        ),
    ),
)
"""Messages about missing objects that a pod needs."""
_NODES: _Table = (
    (
        re.compile(r"Insufficient ([\w./-]+)"),
        lambda found, _: f"request less {found[1].rstrip('.')}, or add a node with more to a lower cluster",
    ),
    (
        re.compile(r"Too many pods"),
        lambda _found, _: "add a node to a lower cluster, or raise maxPods of its nodes",
    ),
    (
        re.compile(r"didn't match Pod's node affinity/selector"),
        lambda _found, _: (
            "compare the pod's selectors (annotation clusterSelector) with the labels of lower nodes: "
            f"{_LOWER} get nodes --show-labels"
        ),
    ),
    (
        re.compile(r"untolerated taint\(?s?\)? \{([^:}]+)"),
        lambda found, _: f"tolerate taint {found[1]} in the pod's template, or remove it from a lower node",
    ),
    (
        re.compile(r"node\(s\) were unschedulable"),
        lambda _found, _: f"{_LOWER} get nodes; {_LOWER} uncordon NODE",
    ),
    (
        re.compile(r"the lower cluster has no nodes"),
        lambda _found, _: f"add nodes to the lower cluster: {_LOWER} get nodes",
    ),
    (
        re.compile(r"cannot be looked into"),
        lambda _found, _: "correct the multi-scheduler's kubeconfig or rights for that lower cluster",
    ),
    (
        re.compile(r"exceeded quota|failed quota"),
        lambda _found, _: "request less, or raise the ResourceQuota of the lower namespace",
    ),
)
"""Messages about why a lower cluster's scheduler finds no node."""


def missing(text: str, *, namespace: str) -> list[str]:
    """Return next steps for missing objects that a message names; empty: it names none."""
    return _steps(_MISSING, text, namespace)


def steps(text: str, *, namespace: str) -> list[str]:
    """Return next steps for a message of a lower cluster; empty: none is known.

    Args:
        text: message of a condition or an event.
        namespace: the pod's namespace.
    """
    return _steps((*_MISSING, *_NODES), text, namespace)


def _steps(table: _Table, text: str, namespace: str) -> list[str]:
    found = (step(match, namespace) for pattern, step in table for match in pattern.finditer(text))
    return list(dict.fromkeys(found))
