"""Which pods are for virtual nodes, and what a pod waits for, by the upper pod alone."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps
from virtual_node.examine.objects import Json, annotations_of, labels_of, statuses

WAITING = "spec.nodeName=,status.phase=Pending"
"""Field selector of pods without a node."""
SCHEDULING = 30.0
"""Seconds after which a pod that the scheduler has not placed is a fault."""
STARTING = 120.0
"""Seconds that a pod may take to start without an explanation, because its image may be large."""
EXPLAINED = 30.0
"""Seconds that an explained failure, such as a failed image pull, may last, because it may be transient."""
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""Moment of objects without a time."""
_AVAILABLE = re.compile(r"0/\d+ nodes are available: (?P<reasons>.*?)\.(?: |$)")
_TAINT = re.compile(r"\d+ node\(s\) had untolerated taint(?:\(s\)|s)? \{")


def is_for_virtual_nodes(pod: Json, virtual_nodes: Collection[str] = ()) -> bool:
    """Report whether a pod is for virtual nodes, by its label, node selector, affinity or toleration.

    All tools must agree, so only the pod and the names of the virtual nodes count. A toleration of every
    taint, as many DaemonSets have, does not count. A pod also counts if its scheduler reports only taints as
    obstacles, and one of them is the taint of virtual nodes.
    """
    spec = pod["spec"]
    if labels_of(pod).get(names.LABEL_VIRTUAL_POD) == "true":
        return True
    if any(toleration.get("key") == names.TAINT_PROVIDER for toleration in spec.get("tolerations") or ()):
        return True
    if _only_taints(condition(pod.get("status"), "PodScheduled").get("message") or ""):
        return True
    wanted = {names.LABEL_NODE_TYPE: {names.NODE_TYPE_VIRTUAL}, names.LABEL_HOSTNAME: set(virtual_nodes)}
    selector = spec.get("nodeSelector") or {}
    if any(selector.get(label) in values for label, values in wanted.items()):
        return True
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return any(
        expression.get("operator") == "In"
        and wanted.get(expression.get("key"), set()) & set(expression.get("values") or ())
        for term in required.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
    )


def silent_lower_scheduler(pod: Json) -> str:
    """Return the lower scheduler that has not tried a pending mirrored pod; empty: there is none.

    A mirrored pod has the conditions of its lower pod, so PodScheduled is set by the lower scheduler.
    """
    annotations, status = annotations_of(pod), pod.get("status") or {}
    is_pending = status.get("phase") == "Pending" and not any(True for _ in statuses(pod))
    if (
        not is_pending
        or names.ANNOTATION_LOWER_UID not in annotations
        or condition(pod.get("status"), "PodScheduled")
    ):
        return ""
    return str(annotations.get(names.ANNOTATION_SCHEDULER_NAME) or "default-scheduler")


def last_change(pod: Json) -> datetime:
    """Return when a condition of a pod last changed; without conditions, the pod's creation."""
    moments = [pod["metadata"].get("creationTimestamp")]
    moments += [each.get("lastTransitionTime") for each in (pod.get("status") or {}).get("conditions") or ()]
    return max((timestamps.parse(moment) for moment in moments if moment), default=LONG_AGO)


def _only_taints(message: str) -> bool:
    """Report whether a scheduler's message has only taints as reasons, including the taint of virtual nodes."""
    found = _AVAILABLE.search(message)
    parts = found["reasons"].split(", ") if found else []
    return any(names.TAINT_PROVIDER in part for part in parts) and all(_TAINT.match(part) for part in parts)
