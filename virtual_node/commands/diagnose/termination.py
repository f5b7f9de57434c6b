"""Rules about pods that do not terminate, and pods that have failed or whose lower pod differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterset.model.pod.conditions import condition, is_finished
from controller_runtime.apimachinery import timestamps
from virtual_node.commands.diagnose import waits
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import DiagnoseFinding, PodFacts, Rule
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


def waited(facts: PodFacts) -> float | None:
    """Return the seconds since ``deletionTimestamp``, negative within the grace period; None: not being deleted."""
    since = facts.pod["metadata"].get("deletionTimestamp")
    return (facts.now - timestamps.parse(since)).total_seconds() if since else None


def _terminating(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    if (late := waited(facts)) is None:
        return
    if late < LONG:
        yield from waits.reported(facts, waits.OF_DELETION)
        return
    lower, wait = facts.lower, waits.of_deletion(facts)
    if finalizers := sorted(facts.pod["metadata"].get("finalizers") or ()):
        title = f"The pod is held by finalizers: {', '.join(finalizers)}."
        steps = ["find out which controller removes them"]
        yield DiagnoseFinding(Code.FINALIZER, title, next_steps=steps)
    elif wait is not None and wait.code is not Code.LOWER_POD_PRESENT:
        yield wait
    elif event := next((one for one in reversed(facts.events) if one.get("reason") in _DETACH), None):
        title = "A volume of the pod cannot be detached from its lower node."
        steps = ["check the CSI driver on the lower node"]
        yield DiagnoseFinding(Code.VOLUME_DETACH, title, [str(event.get("message") or "")], steps)
    elif facts.is_lower_read and lower is None:
        title = "The lower pod is gone, but its virtual node has not finished the deletion of the upper pod."
        yield DiagnoseFinding(Code.LOWER_POD_GONE, title, next_steps=["look at the virtual node's log"])
    elif not facts.is_lower_read and (known := next(waits.reported(facts, waits.OF_DELETION), None)):
        yield known
    else:
        title = f"The pod should have ended {late:.0f} s ago; its lower cluster has not reported it."
        yield DiagnoseFinding(Code.LOWER_POD_PRESENT, title, rank=1)


def _failed(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    status = facts.pod.get("status") or {}
    reason, message = status.get("reason") or "", str(status.get("message") or "")
    if status.get("phase") != "Failed" and reason != LOWER_POD_DELETED:
        return
    disruption = condition(status, "DisruptionTarget")
    cause = str(disruption.get("message") or "")
    if reason == "Evicted":
        codes = (code for code, words in _RESOURCES if any(word in message for word in words))
        title = "The lower node evicted the pod, because the node or the pod used too much."
        steps = ["request what the pod uses, and limit it; the owner of the pod creates a new one"]
        yield DiagnoseFinding(next(codes, Code.EVICTED), title, [message], steps)
    elif reason in _REASONS:
        code, title = _REASONS[reason]
        yield DiagnoseFinding(code, title, [message])
    elif reason.startswith("OutOf") or reason.endswith("Forbidden") or reason in _REJECTED:
        yield DiagnoseFinding(Code.NODE_REJECTED, f"The lower node refused the pod: {reason}.", [message])
    elif disruption.get("reason") == "PreemptionByScheduler":
        title = "A pod of higher priority took the place of the pod."
        yield DiagnoseFinding(Code.PREEMPTED, title, [cause])
    elif disruption.get("status") == "True":
        title = "The pod was evicted in the lower cluster."
        yield DiagnoseFinding(Code.EVICTED, title, [f"{disruption.get('reason')}: {cause}"])


def _differs(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    status = facts.pod.get("status") or {}
    if not facts.is_lower_read or not facts.pod["spec"].get("nodeName") or is_finished(status):
        return
    upper, steps = status.get("phase") or "Pending", ["look at the virtual node's log"]
    if facts.lower is None:
        if not status.get("reason"):
            title = f"There is no lower pod {'yet' if upper == 'Pending' else 'any more'}."
            yield DiagnoseFinding(Code.NO_LOWER_POD, title, next_steps=steps, rank=2)
        return
    lower = facts.lower.get("status") or {}
    phase = lower.get("phase") or "Pending"
    moments = [one.get("lastTransitionTime") for one in lower.get("conditions") or ()]
    moments += [facts.lower["metadata"].get("creationTimestamp")]
    quiet = min(((facts.now - timestamps.parse(one)).total_seconds() for one in moments if one), default=0.0)
    if phase != upper and quiet > _DIFFERING:
        title = (
            f"The upper pod is {upper}, but its lower pod is {phase}: the virtual node does not report it."
        )
        evidence = [f"the lower pod has not changed for {quiet:.0f} s"]
        yield DiagnoseFinding(Code.PHASES_DIFFER, title, evidence, steps)


RULES: Sequence[Rule] = (_terminating, _failed, _differs)
DELETING_RULES: Sequence[Rule] = (_terminating,)
"""Rules about pods that are being deleted; containers that end are normal then."""
