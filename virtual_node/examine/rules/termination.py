"""Rules about pods that do not terminate, and pods that have failed or whose lower pod differs."""

from __future__ import annotations

from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import detail
from virtual_node.examine.finding import Findings
from virtual_node.examine.pod_view import PodView, Stage
from virtual_node.examine.rules import waits
from virtual_node.translate.pods.synthetic_status import LOWER_POD_DELETED

LONG = 120.0
"""Seconds after ``deletionTimestamp``, the end of the grace period, from which a pod is reported."""
_DIFFERING = 60.0
"""Seconds since the last change of the lower pod from which different phases are reported."""
_REASONS = {
    "DeadlineExceeded": (Code.DEADLINE, "The pod ran longer than its activeDeadlineSeconds."),
    "Terminated": (Code.NODE_SHUTDOWN, "The lower node was shut down."),
    "NodeShutdown": (Code.NODE_SHUTDOWN, "The lower node was shut down."),
    LOWER_POD_DELETED: (Code.LOWER_POD_DELETED, "The pod was deleted in the lower cluster."),
}
"""Code and title by reason of a failed pod."""
_REJECTED = frozenset(
    {"UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "PodOSNotSupported", "AppArmor"}
)
"""Reasons with which a kubelet refuses a pod, beside OutOf… and …Forbidden."""
_RESOURCES = (
    (Code.EVICTED_MEMORY, ("memory",)),
    (Code.EVICTED_DISK, ("ephemeral", "storage", "inodes", "imagefs", "nodefs", "EmptyDir")),
    (Code.EVICTED_PIDS, ("pids",)),
)
"""Words in a kubelet's message about an eviction."""
_DETACH = frozenset({"FailedUnMount", "FailedDetachVolume", "FailedUnmapDevice"})
"""Event reasons of volumes that cannot be detached from a lower node."""


@detail(
    Code.FINALIZER,
    Code.VOLUME_DETACH,
    Code.LOWER_POD_GONE,
    *(Code(reason) for reason in waits.OF_DELETION),
    stages=[Stage.DELETING],
)
def terminating(view: PodView) -> Findings:
    """Yield what keeps a pod that is being deleted."""
    if (late := _late(view)) < LONG:
        yield from waits.reported(view, waits.OF_DELETION)
        return
    lower, wait = view.lower, waits.of_deletion(view)
    if finalizers := sorted(view.pod["metadata"].get("finalizers") or ()):
        title = f"The pod is held by finalizers: {', '.join(finalizers)}."
        steps = ["find out which controller removes them"]
        yield view.finding(Code.FINALIZER, title, next_steps=steps)
    elif wait is not None and wait.code is not Code.LOWER_POD_PRESENT:
        yield wait
    elif event := next((one for one in reversed(view.events) if one.get("reason") in _DETACH), None):
        title = "A volume of the pod cannot be detached from its lower node."
        steps = ["check the CSI driver on the lower node"]
        yield view.finding(Code.VOLUME_DETACH, title, [str(event.get("message") or "")], steps)
    elif view.is_lower_read and lower is None:
        title = "The lower pod is gone, but its virtual node has not finished the deletion of the upper pod."
        yield view.finding(Code.LOWER_POD_GONE, title, next_steps=["look at the virtual node's log"])
    elif not view.is_lower_read and (known := next(waits.reported(view, waits.OF_DELETION), None)):
        yield known
    else:
        title = f"The pod should have ended {late:.0f} s ago; its lower cluster has not reported it."
        yield view.finding(Code.LOWER_POD_PRESENT, title, rank=1)


@detail(
    *(Code.NODE_REJECTED, Code.PREEMPTED, Code.EVICTED),
    *(code for code, _ in (*_REASONS.values(), *_RESOURCES)),
    stages=[Stage.FAILED],
)
def failed(view: PodView) -> Findings:
    """Yield why a pod failed for a reason outside its containers."""
    status = view.pod.get("status") or {}
    reason, message = status.get("reason") or "", str(status.get("message") or "")
    disruption = condition(status, "DisruptionTarget")
    cause = str(disruption.get("message") or "")
    if reason == "Evicted":
        codes = (code for code, words in _RESOURCES if any(word in message for word in words))
        title = "The lower node evicted the pod, because the node or the pod used too much."
        steps = ["request what the pod uses, and limit it; the owner of the pod creates a new one"]
        yield view.finding(next(codes, Code.EVICTED), title, [message], steps)
    elif reason in _REASONS:
        code, title = _REASONS[reason]
        yield view.finding(code, title, [message])
    elif reason.startswith("OutOf") or reason.endswith("Forbidden") or reason in _REJECTED:
        yield view.finding(Code.NODE_REJECTED, f"The lower node refused the pod: {reason}.", [message])
    elif disruption.get("reason") == "PreemptionByScheduler":
        title = "A pod of higher priority took the place of the pod."
        yield view.finding(Code.PREEMPTED, title, [cause])
    elif disruption.get("status") == "True":
        title = "The pod was evicted in the lower cluster."
        yield view.finding(Code.EVICTED, title, [f"{disruption.get('reason')}: {cause}"])


@detail(Code.LOWER_POD_MISSING, Code.STATUS_DRIFT)
def differs(view: PodView) -> Findings:
    """Yield that the lower pod is missing, or has another phase."""
    status = view.pod.get("status") or {}
    if not view.is_lower_read or not view.pod["spec"].get("nodeName"):
        return
    upper, steps = status.get("phase") or "Pending", ["look at the virtual node's log"]
    if view.lower is None:
        if not status.get("reason"):
            title = f"There is no lower pod {'yet' if upper == 'Pending' else 'any more'}."
            yield view.finding(Code.LOWER_POD_MISSING, title, next_steps=steps, rank=2)
        return
    lower = view.lower.get("status") or {}
    phase = lower.get("phase") or "Pending"
    moments = [one.get("lastTransitionTime") for one in lower.get("conditions") or ()]
    moments += [view.lower["metadata"].get("creationTimestamp")]
    quiet = min(((view.now - timestamps.parse(one)).total_seconds() for one in moments if one), default=0.0)
    if phase != upper and quiet > _DIFFERING:
        title = (
            f"The upper pod is {upper}, but its lower pod is {phase}: the virtual node does not report it."
        )
        evidence = [f"the lower pod has not changed for {quiet:.0f} s"]
        yield view.finding(Code.STATUS_DRIFT, title, evidence, steps)


def _late(view: PodView) -> float:
    """Return the seconds since the end of the grace period, negative within it."""
    return (view.now - timestamps.parse(view.pod["metadata"]["deletionTimestamp"])).total_seconds()
