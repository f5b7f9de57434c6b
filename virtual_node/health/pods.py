"""Finds problems of a pod from conditions and container states of the upper pod alone."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime

from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_finished
from controller_runtime.apimachinery import timestamps
from virtual_node.health.facts import PodSign
from virtual_node.health.faults import Kind
from virtual_node.health.objects import (
    Json,
    annotations_of,
    is_deleting,
    key,
    labels_of,
    one_line,
    statuses,
    waiting,
)
from virtual_node.translate.pods.summary import status_word

WAITING = "spec.nodeName=,status.phase=Pending"
"""Field selector of pods without a node."""
SCHEDULING = 30.0
"""Seconds after which a pod that the scheduler has not placed is a fault."""
STARTING = 120.0
"""Seconds that a pod may take to start without an explanation, because its image may be large."""
EXPLAINED = 30.0
"""Seconds that an explained failure, such as a failed image pull, may last, because it may be transient."""
_AVAILABLE = re.compile(r"0/\d+ nodes are available: (?P<reasons>.*?)\.(?: |$)")
_TAINT = re.compile(r"\d+ node\(s\) had untolerated taint(?:\(s\)|s)? \{")
_STARTING = frozenset({"", "Pending", "ContainerCreating", "PodInitializing"})
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def waiting_sign(pod: Json, virtual_nodes: Collection[str] = ()) -> PodSign | None:
    """Return why a pod for virtual nodes waits for a node; None: it does not wait, or is not for virtual nodes.

    Pods with scheduling gates, finished pods and pods that are being deleted do not wait.

    Args:
        pod: the upper pod.
        virtual_nodes: names of the virtual nodes.
    """
    if pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates") or not _is_alive(pod):
        return None
    if not is_for_virtual_nodes(pod, virtual_nodes):
        return None
    scheduled = condition(pod.get("status"), "PodScheduled")
    name = pod["spec"].get("schedulerName") or "default-scheduler"
    message = scheduled.get("message") or f"scheduler {name} has not looked at it"
    since = _moment(scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp"))
    reason = scheduled.get("reason") or f"NotSeen by {name}"
    return PodSign(Kind.POD_UNSCHEDULED, key(pod), "", since, reason, one_line(message), SCHEDULING)


def sign(pod: Json) -> PodSign | None:
    """Return why a pod on a virtual node does not run; None: no fault, finished, or being deleted."""
    if not _is_alive(pod):
        return None
    node = pod["spec"].get("nodeName", "")

    def of(kind: Kind, reason: str, cause: str, patience: float, moment: str | None = None) -> PodSign:
        has_reason = reason in cause or reason.startswith("NotSeen")
        text = one_line(cause if has_reason else f"{reason}: {cause}".rstrip(": "))
        since = _moment(moment) if moment else _since(pod)
        return PodSign(kind, key(pod), node, since, reason, text, patience)

    refused = condition(pod.get("status"), names.CONDITION_ADMITTED)
    if refused.get("status") == "False":
        reason = refused.get("reason") or "Refused"
        return of(Kind.POD_REFUSED, reason, refused.get("message") or "", EXPLAINED, refused.get("lastTransitionTime"))  # fmt: skip
    for container in statuses(pod):
        if found := _container_trouble(container):
            loops = found[0] == "CrashLoopBackOff"
            return of(Kind.POD_FAILING, *found, 0.0 if loops else EXPLAINED)
    if (pod.get("status") or {}).get("phase") != "Pending":
        return None
    scheduled = condition(pod.get("status"), "PodScheduled")
    if scheduled.get("status") == "False":
        reason = scheduled.get("reason") or "Unschedulable"
        return of(Kind.POD_UNSCHEDULABLE, reason, scheduled.get("message") or "", EXPLAINED, scheduled.get("lastTransitionTime"))  # fmt: skip
    if name := silent_lower_scheduler(pod):
        why = f"scheduler {name} of the lower cluster has not looked at it"
        return of(Kind.POD_UNSCHEDULABLE, f"NotSeen by {name}", why, SCHEDULING)
    word, why = status_word(pod)
    if word.removeprefix("Init:") in _STARTING:
        return of(Kind.POD_NOT_STARTED, word or "Pending", why, STARTING)
    return of(Kind.POD_NOT_STARTED, word, why, EXPLAINED if why else STARTING)


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


def is_for_virtual_nodes(pod: Json, virtual_nodes: Collection[str] = ()) -> bool:
    """Report whether a pod is for virtual nodes, by its label, node selector, affinity or toleration.

    All tools must agree, so only the pod and the names of the virtual nodes count. A toleration of every
    taint, as many DaemonSets have, does not count. A pod also counts if its scheduler reports only taints as
    obstacles, and one of them is the taint of virtual nodes.
    """
    spec = pod["spec"]
    if labels_of(pod).get(names.LABEL_VIRTUAL_POD) == "true":
        return True
    if any(one.get("key") == names.TAINT_PROVIDER for one in spec.get("tolerations") or ()):
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
        one.get("operator") == "In" and wanted.get(one.get("key"), set()) & set(one.get("values") or ())
        for term in required.get("nodeSelectorTerms") or ()
        for one in term.get("matchExpressions") or ()
    )


def _only_taints(message: str) -> bool:
    """Report whether a scheduler's message has only taints as reasons, including the taint of virtual nodes."""
    found = _AVAILABLE.search(message)
    parts = found["reasons"].split(", ") if found else []
    return any(names.TAINT_PROVIDER in part for part in parts) and all(_TAINT.match(part) for part in parts)


def _container_trouble(container: Json) -> tuple[str, str] | None:
    """Return reason and cause if a container cannot start or crashes repeatedly, otherwise None."""
    reason = waiting(container).get("reason") or ""
    if reason in _STARTING:
        return None
    ended = (container.get("lastState") or {}).get("terminated") or {}
    if reason == "CrashLoopBackOff" and ended:
        code, why = ended.get("exitCode"), ended.get("message") or ended.get("reason") or ""
        return reason, f"container {container['name']}, exit code {code}, {why}".rstrip(", ")
    return reason, str(waiting(container).get("message") or "")


def _is_alive(pod: Json) -> bool:
    return not is_deleting(pod) and not is_finished(pod.get("status"))


def _since(pod: Json) -> datetime:
    """Return when a condition of a pod last changed; without conditions, the pod's creation."""
    moments = [pod["metadata"].get("creationTimestamp")]
    moments += [one.get("lastTransitionTime") for one in (pod.get("status") or {}).get("conditions") or ()]
    return max((timestamps.parse(moment) for moment in moments if moment), default=_LONG_AGO)


def _moment(text: str | None) -> datetime:
    return timestamps.parse(text) if text else _LONG_AGO
