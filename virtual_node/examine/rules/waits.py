"""Rules about waits that the virtual node reports (``translate/pods/waits.py``), with its codes and messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clusterset.model.pod.conditions import condition
from controller_runtime.objects import from_dict
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import detail
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.objects import statuses, waiting
from virtual_node.examine.pod_view import PodView
from virtual_node.translate.base import ownership
from virtual_node.translate.pods import waits
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
    for event in reversed(view.events):
        if event.get("reason") in reasons:
            reason = str(event["reason"])
            yield view.finding(Code(reason), _TITLES[reason], [str(event.get("message") or "")])
            return


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
    return not found or (is_last and all(waiting(one).get("reason") in _CREATING for one in found))


@detail(Code.ADOPTED)
def adopted(view: PodView) -> Findings:
    """Yield a controller of the lower cluster that has adopted the lower pod."""
    lower = view.lower
    controller = "" if lower is None else ownership.lower_controller(from_dict(dict(lower)))
    messages = [str(one.get("message")) for one in view.events if one.get("reason") == Code.ADOPTED][-1:]
    if controller or (lower is None and messages):
        title = f"{controller or 'A controller'} of the lower cluster has adopted the lower pod, and may delete it."
        steps = ["delete that controller in the lower cluster or change its selector, then delete this pod"]
        yield view.finding(Code.ADOPTED, title, messages, steps, rank=1)


def _finding(view: PodView, wait: Wait) -> Finding:
    return view.finding(Code(wait.reason), f"{wait.message}.", next_steps=[wait.step])
