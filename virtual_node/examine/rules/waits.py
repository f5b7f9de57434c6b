"""Rules about pods that do not start or end: the waits that the virtual node reports, and the ends of pods.

The codes and messages of waits are those of ``translate/pods/waits.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import from_dict
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import detail
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.objects import last_change, statuses, waiting
from virtual_node.examine.pod_view import PodView, Stage
from virtual_node.translate.base import ownership
from virtual_node.translate.pods import waits
from virtual_node.translate.pods.synthetic_status import LOWER_POD_DELETED
from virtual_node.translate.pods.waits import Wait, WaitReason

_TITLES: Mapping[str, str] = {
    WaitReason.FINALIZER: "The lower pod is held by finalizers.",
    WaitReason.NODE: "The node in the lower cluster is not Ready.",
    WaitReason.TERMINATION: "The lower pod has not ended in its grace period.",
    WaitReason.DELETION: "The lower cluster refuses to delete the lower pod.",
    WaitReason.GATE: "Scheduling gates of the lower cluster hold the pod back.",
}
OF_DELETION = frozenset({WaitReason.FINALIZER, WaitReason.NODE, WaitReason.TERMINATION, WaitReason.DELETION})
_CREATING = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of containers that a kubelet has not started yet."""


def of_deletion(view: PodView) -> Finding | None:
    """Return why the lower pod of a pod that is being deleted stays; None: the lower cluster was not read, or no reason."""
    if view.lower is None:
        return None
    metadata = {"deletionTimestamp": view.pod["metadata"]["deletionTimestamp"], **view.lower["metadata"]}
    wait = waits.of_deletion({**view.lower, "metadata": metadata}, None, cluster=view.cluster, now=view.now)
    return None if wait is None else _finding(view, wait)


def reported(view: PodView, reasons: Collection[WaitReason]) -> Findings:
    """Yield the last wait with any of these reasons that the virtual node has reported as an event."""
    reason, message = view.newest(*reasons)
    if reason:
        yield view.finding(Code(reason), _TITLES[reason], [message])


@detail(*(Code(reason) for reason in (WaitReason.GATE, WaitReason.NODE)))
def start(view: PodView) -> Findings:
    """Yield what keeps a lower pod from starting: from the lower pod if it was read, else from condition and events."""
    status = view.pod.get("status") or {}
    if not view.pod["spec"].get("nodeName") or status.get("phase") not in {None, "", "Pending"}:
        return
    if view.lower is not None and (wait := waits.of_start(view.lower, None, cluster=view.cluster)):
        if wait.reason is not WaitReason.SCHEDULER:  # ``lower_placement`` has a patience for it
            yield _finding(view, wait)
        return
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("reason") == WaitReason.GATE:
        message = str(scheduled.get("message") or "")
        yield view.finding(Code.SCHEDULING_GATED, _TITLES[WaitReason.GATE], [message])
    elif _may_wait_for_node(view):
        yield from reported(view, {WaitReason.NODE})


def _may_wait_for_node(view: PodView) -> bool:
    """Report whether an event about the lower node may still be true: no kubelet has done anything for the pod since then."""
    found = list(statuses(view.pod))
    is_last = bool(view.events) and view.events[-1].get("reason") == WaitReason.NODE
    return not found or (is_last and all(waiting(each).get("reason") in _CREATING for each in found))


@detail(Code.ADOPTED)
def adopted(view: PodView) -> Findings:
    """Yield a controller of the lower cluster that has adopted the lower pod."""
    lower = view.lower
    controller = "" if lower is None else ownership.lower_controller(from_dict(dict(lower)))
    reason, message = view.newest(Code.ADOPTED)
    if controller or (lower is None and reason):
        title = f"{controller or 'A controller'} of the lower cluster has adopted the lower pod, and may delete it."
        steps = ["delete that controller in the lower cluster or change its selector, then delete this pod"]
        yield view.finding(Code.ADOPTED, title, [message] if reason else [], steps, rank=1)


def _finding(view: PodView, wait: Wait) -> Finding:
    return view.finding(Code(wait.reason), f"{wait.message}.", next_steps=[wait.step])


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
    *(Code(reason) for reason in OF_DELETION),
    stages=[Stage.DELETING],
)
def terminating(view: PodView) -> Findings:
    """Yield what keeps a pod that is being deleted."""
    # The seconds since the end of the grace period, negative within it.
    late = (view.now - timestamps.parse(view.pod["metadata"]["deletionTimestamp"])).total_seconds()
    if late < LONG:
        yield from reported(view, OF_DELETION)
        return
    lower, wait = view.lower, of_deletion(view)
    if finalizers := sorted(view.pod["metadata"].get("finalizers") or ()):
        title = f"The pod is held by finalizers: {', '.join(finalizers)}."
        steps = ["find out which controller removes them"]
        yield view.finding(Code.FINALIZER, title, next_steps=steps)
    elif wait is not None and wait.code is not Code.LOWER_POD_PRESENT:
        yield wait
    elif (detached := view.newest(*_DETACH))[0]:
        title = "A volume of the pod cannot be detached from its lower node."
        steps = ["check the CSI driver on the lower node"]
        yield view.finding(Code.VOLUME_DETACH, title, [detached[1]], steps)
    elif view.is_lower_read and lower is None:
        title = "The lower pod is gone, but its virtual node has not finished the deletion of the upper pod."
        yield view.finding(Code.LOWER_POD_GONE, title, next_steps=["look at the virtual node's log"])
    elif not view.is_lower_read and (known := next(reported(view, OF_DELETION), None)):
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
    quiet = (view.now - last_change(view.lower)).total_seconds()
    if phase != upper and quiet > _DIFFERING:
        title = (
            f"The upper pod is {upper}, but its lower pod is {phase}: the virtual node does not report it."
        )
        evidence = [f"the lower pod has not changed for {quiet:.0f} s"]
        yield view.finding(Code.STATUS_DRIFT, title, evidence, steps)
