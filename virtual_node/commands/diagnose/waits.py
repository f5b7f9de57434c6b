"""Rules about waits that the virtual node reports (``translate/pods/waits.py``), with its codes and messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from clusterset.model.pod.conditions import condition
from controller_runtime.objects import from_dict
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import DiagnoseFinding, PodFacts, Rule
from virtual_node.examine.objects import cluster_of, statuses, waiting
from virtual_node.translate.base import ownership
from virtual_node.translate.pods import waits
from virtual_node.translate.pods.waits import Wait, WaitReason

_TITLES: Mapping[str, str] = {
    WaitReason.PREDECESSOR: "The pod waits for the name of an older pod in the lower cluster.",
    WaitReason.FINALIZER: "The lower pod is held by finalizers.",
    WaitReason.NODE: "The node in the lower cluster is not Ready.",
    WaitReason.TERMINATION: "The lower pod has not ended in its grace period.",
    WaitReason.DELETION: "The lower cluster refuses to delete the lower pod.",
    WaitReason.COPIES: "What the pod needs in the lower cluster cannot be read or copied yet.",
    WaitReason.GATE: "Scheduling gates of the lower cluster hold the pod back.",
    WaitReason.SCHEDULER: "No scheduler of the lower cluster has looked at the pod.",
    WaitReason.BACK_OFF: "The lower cluster deletes the pods of this owner again and again.",
}
OF_DELETION = frozenset({WaitReason.FINALIZER, WaitReason.NODE, WaitReason.TERMINATION, WaitReason.DELETION})
_CREATING = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of containers that a kubelet has not started yet."""
_BEFORE_CREATION = frozenset({WaitReason.PREDECESSOR, WaitReason.BACK_OFF, WaitReason.COPIES})


def of_deletion(facts: PodFacts) -> DiagnoseFinding | None:
    """Return why the lower pod of a pod that is being deleted stays; None: the lower cluster was not read, or no reason."""
    if facts.lower is None:
        return None
    metadata = {"deletionTimestamp": facts.pod["metadata"]["deletionTimestamp"], **facts.lower["metadata"]}
    wait = waits.of_deletion(
        {**facts.lower, "metadata": metadata}, None, cluster=_cluster(facts), now=facts.now
    )
    return None if wait is None else _finding(wait)


def reported(facts: PodFacts, reasons: Collection[WaitReason]) -> Iterator[DiagnoseFinding]:
    """Yield the last wait with any of these reasons that the virtual node has reported as an event."""
    for event in reversed(facts.events):
        if event.get("reason") in reasons:
            reason = str(event["reason"])
            yield DiagnoseFinding(Code(reason), _TITLES[reason], [str(event.get("message") or "")])
            return


def _before_creation(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    for container in statuses(facts.pod):
        reason = waiting(container).get("reason")
        if reason in _BEFORE_CREATION:
            yield DiagnoseFinding(
                Code(reason), _TITLES[reason], [str(waiting(container).get("message") or "")]
            )
            return


def _start(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    """Yield what keeps a lower pod from starting: from the lower pod if it was read, else from condition and events."""
    status = facts.pod.get("status") or {}
    if not facts.pod["spec"].get("nodeName") or status.get("phase") not in {None, "", "Pending"}:
        return
    if facts.lower is not None and (wait := waits.of_start(facts.lower, None, cluster=_cluster(facts))):
        if wait.reason is not WaitReason.SCHEDULER:  # ``placement`` has a patience for it
            yield _finding(wait)
        return
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("reason") == WaitReason.GATE:
        message = str(scheduled.get("message") or "")
        yield DiagnoseFinding(Code.SCHEDULING_GATED, _TITLES[WaitReason.GATE], [message])
    elif _may_wait_for_node(facts):
        yield from reported(facts, {WaitReason.NODE})


def _may_wait_for_node(facts: PodFacts) -> bool:
    """Report whether an event about the lower node may still be true: no kubelet has done anything for the pod since then."""
    found = list(statuses(facts.pod))
    is_last = bool(facts.events) and facts.events[-1].get("reason") == WaitReason.NODE
    return not found or (is_last and all(waiting(one).get("reason") in _CREATING for one in found))


def _adopted(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    lower = facts.lower
    controller = "" if lower is None else ownership.lower_controller(from_dict(dict(lower)))
    messages = [str(one.get("message")) for one in facts.events if one.get("reason") == Code.ADOPTED][-1:]
    if controller or (lower is None and messages):
        title = f"{controller or 'A controller'} of the lower cluster has adopted the lower pod, and may delete it."
        steps = ["delete that controller in the lower cluster or change its selector, then delete this pod"]
        yield DiagnoseFinding(Code.ADOPTED, title, messages, steps, rank=1)


def _finding(wait: Wait) -> DiagnoseFinding:
    return DiagnoseFinding(Code(wait.reason), f"{wait.message}.", next_steps=[wait.step])


def _cluster(facts: PodFacts) -> str:
    node: Any = facts.node
    return cluster_of(node) if node is not None else "?"


RULES: Sequence[Rule] = (_before_creation, _start, _adopted)
