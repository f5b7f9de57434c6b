"""Finds problems of users' objects from their own status: of an upper pod, and of a Swarm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime.apimachinery import timestamps
from virtual_node.config import program
from virtual_node.examine import messages
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.facts import SWARMS
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.objects import (
    EXPLAINED,
    SCHEDULING,
    STARTING,
    Json,
    is_deleting,
    is_for_virtual_nodes,
    key,
    last_change,
    one_line,
    silent_lower_scheduler,
    statuses,
    waiting,
)
from virtual_node.examine.snapshot import Snapshot
from virtual_node.translate.pods.summary import status_word

_BEFORE_CREATION = {
    Code.WAITING_FOR_PREDECESSOR: "The pod waits for the name of an older pod in the lower cluster.",
    Code.WAITING_FOR_COPIES: "What the pod needs in the lower cluster cannot be read or copied yet.",
    Code.LOWER_POD_LOST_BACK_OFF: "The lower cluster deletes the pods of this owner again and again.",
}
"""What a pod waits for, by the reason that the virtual node writes into the status of its containers."""
_STARTING = frozenset({"", "Pending", "ContainerCreating", "PodInitializing"})


@rule(
    *(Code.POD_UNSCHEDULED, Code.POD_UNSCHEDULABLE, Code.POD_REFUSED, Code.POD_NOT_STARTED, Code.POD_FAILING),
    level=Level.POD,
    is_fallback=True,
)
def does_not_run(pod: Json, virtual_nodes: Collection[str] = ()) -> Findings:
    """Yield why an upper pod on a virtual node or on none does not run; nothing if it has finished or is being deleted."""
    if not is_deleting(pod) and not is_finished(pod.get("status")):
        found = _of_bound(pod) if pod["spec"].get("nodeName") else _of_waiting(pod, virtual_nodes)
        if found is not None:
            yield found


@rule(*_BEFORE_CREATION, level=Level.POD)
def before_creation(pod: Json, _virtual_nodes: Collection[str] = ()) -> Findings:
    """Yield why a pod on a virtual node is not created in the lower cluster yet."""
    if is_deleting(pod) or is_finished(pod.get("status")):
        return
    for container in statuses(pod):
        waits = waiting(container)
        if (reason := waits.get("reason")) in _BEFORE_CREATION:
            code = Code(reason)
            yield Finding(
                code=code,
                kind="Pod",
                names=[key(pod)],
                cause=_BEFORE_CREATION[code],
                evidence=[str(waits.get("message") or "")],
                node=pod["spec"].get("nodeName") or "",
                since=last_change(pod),
                patience=EXPLAINED,
                reason=code,
            )
            return


def _of_waiting(pod: Json, virtual_nodes: Collection[str]) -> Finding | None:
    """Return why a pod for virtual nodes waits for a node; None: it has scheduling gates, or is not for virtual nodes."""
    if pod["spec"].get("schedulingGates") or not is_for_virtual_nodes(pod, virtual_nodes):
        return None
    scheduled = condition(pod.get("status"), "PodScheduled")
    name = pod["spec"].get("schedulerName") or "default-scheduler"
    return _finding(
        Code.POD_UNSCHEDULED,
        pod,
        scheduled.get("reason") or f"NotSeen by {name}",
        scheduled.get("message") or f"scheduler {name} has not looked at it",
        SCHEDULING,
        scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp"),
        has_reason=True,
    )


def _of_bound(pod: Json) -> Finding | None:
    """Return why a pod on a virtual node does not run; None: it runs, or is starting."""
    refused = condition(pod.get("status"), names.CONDITION_ADMITTED)
    if refused.get("status") == "False":
        reason = refused.get("reason") or "Refused"
        moment = refused.get("lastTransitionTime")
        return _finding(Code.POD_REFUSED, pod, reason, refused.get("message") or "", EXPLAINED, moment)
    for container in statuses(pod):
        if found := _container_trouble(container):
            patience = 0.0 if found[0] == "CrashLoopBackOff" else EXPLAINED
            return _finding(Code.POD_FAILING, pod, *found, patience)
    if (pod.get("status") or {}).get("phase") != "Pending":
        return None
    scheduled = condition(pod.get("status"), "PodScheduled")
    if scheduled.get("status") == "False":
        reason, why = scheduled.get("reason") or "Unschedulable", scheduled.get("message") or ""
        moment = scheduled.get("lastTransitionTime")
        return _finding(Code.POD_UNSCHEDULABLE, pod, reason, why, EXPLAINED, moment)
    if name := silent_lower_scheduler(pod):
        why = f"scheduler {name} of the lower cluster has not looked at it"
        return _finding(Code.POD_UNSCHEDULABLE, pod, f"NotSeen by {name}", why, SCHEDULING)
    word, why = status_word(pod)
    if word.removeprefix("Init:") in _STARTING:
        return _finding(Code.POD_NOT_STARTED, pod, word or "Pending", why, STARTING)
    return _finding(Code.POD_NOT_STARTED, pod, word, why, EXPLAINED if why else STARTING)


def _finding(  # noqa: PLR0917 - in the order of the report
    code: Code,
    pod: Json,
    reason: str,
    cause: str,
    patience: float,
    moment: str | None = None,
    *,
    has_reason: bool = False,
) -> Finding:
    """Return a finding about a pod; the cause begins with the reason unless it contains it (``has_reason``)."""
    has_reason = has_reason or reason in cause or reason.startswith("NotSeen")
    step = program.name(f"diagnose pod {key(pod)}")
    same = reason
    if code in {Code.POD_UNSCHEDULED, Code.POD_UNSCHEDULABLE}:
        # Schedulers have one reason for all causes, and one line about several pods shows the cause of the first.
        same = f"{reason} {messages.unschedulable(cause)}"
    if code is Code.POD_UNSCHEDULABLE:
        step += "; the descheduler moves such pods, the multi-scheduler avoids them"
    return Finding(
        code=code,
        kind="Pod",
        names=[key(pod)],
        cause=one_line(cause if has_reason else f"{reason}: {cause}".rstrip(": ")),
        next_steps=[step],
        node=pod["spec"].get("nodeName") or "",
        since=timestamps.parse(moment) if moment else last_change(pod),
        patience=patience,
        reason=same,
    )


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


_PATIENCE = 300.0
"""Seconds that workers may take to hand over jobs."""
_CONDITIONS = (
    ("Degraded", "True", Code.SWARM_DEGRADED, "degraded", 0.0),
    ("Assigned", "False", Code.SWARM_UNASSIGNED, "jobs without worker", 0.0),
    ("Converged", "False", Code.SWARM_NOT_CONVERGED, "handing over", _PATIENCE),
)
"""Type and status of a condition, its fault, the state to show, and the seconds that it may last; causes before
effects."""


@rule(Code.SWARM_DEGRADED, Code.SWARM_UNASSIGNED, Code.SWARM_NOT_CONVERGED, needs=[SWARMS])
def swarms(snapshot: Snapshot) -> Findings:
    """Yield the first condition of each Swarm that has lasted too long."""
    for swarm in snapshot.upper[SWARMS]:
        for name, status, code, _, patience in _CONDITIONS:
            found = condition(swarm.get("status"), name)
            if found.get("status") != status or _seconds_since(found, snapshot.now) < patience:
                continue
            metadata = swarm["metadata"]
            cause = one_line(found.get("message") or found.get("reason") or f"{name} is {status}")
            step = f"kubectl describe swarm {metadata['name']} -n {metadata['namespace']}"
            yield snapshot.upper.finding(code, "Swarm", key(swarm), cause, step)
            break


def _seconds_since(found: Mapping[str, Any], now: datetime) -> float:
    """Return the age of a condition; infinite without a valid time, because users can write the status."""
    try:
        return max(0.0, (now - timestamps.parse(found["lastTransitionTime"])).total_seconds())
    except (KeyError, ValueError):
        return float("inf")


def swarm_state(swarm: Json) -> str:
    """Return the state of a Swarm for people: ``degraded``, ``handing over``, …; ``unknown``: no conditions yet."""
    states = (
        state
        for name, status, _, state, _ in _CONDITIONS
        if condition(swarm.get("status"), name).get("status") == status
    )
    return next(states, "converged" if is_true(swarm.get("status"), "Converged") else "unknown")
