"""Renders a Swarm's ``status``, and sets the metrics of Swarms from it. No IO.

The status field ``record`` is the controller's memory; the rest is for users.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Counter, Gauge

from controller_runtime.apimachinery.readable import count
from controller_runtime.objects import Object
from swarm import handover
from swarm.assignment import Assignment
from swarm.handover import Acknowledgement, Holder, Ledger

_LISTED = 200_000
"""Limit of job names in the status, in characters. For workers beyond this limit, only the number of jobs is listed."""
_UNASSIGNED = 100

_JOBS = Gauge(
    "virtual_node_swarm_jobs",
    "Jobs of a Swarm: all, assigned to a worker, acknowledged as running.",
    ["swarm_namespace", "swarm", "state"],
)
_WORKERS = Gauge(
    "virtual_node_swarm_workers",
    "Workers of a Swarm: all, and those that have not acknowledged their newest share.",
    ["swarm_namespace", "swarm", "state"],
)
_MOVED = Counter(
    "virtual_node_swarm_moved_total", "Jobs that moved to another worker.", ["swarm_namespace", "swarm"]
)
_STATES = {"all": "jobCount", "assigned": "assignedCount", "running": "runningCount"}

_Verdict = tuple[bool | None, str, str]
"""Status of a condition (None: unknown), reason and message."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of a reconcile besides the record."""

    acknowledged: Mapping[str, Acknowledgement]
    generation: int = 0
    unknown: Collection[str] = ()
    """UIDs of pods that are absent without proof that their jobs have stopped."""
    problems: Sequence[tuple[str, str]] = field(default_factory=list)
    """Reason and message of problems that the user must solve."""
    plain: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By pod UID: the jobs of workers that do not acknowledge, such as k8s-swarm's."""


def render(
    before: Mapping[str, Any], ledger: Ledger, assignment: Assignment, findings: Findings, *, now: str
) -> dict[str, Any]:
    """Return the complete status; it equals the previous one if nothing changed."""
    workers = _workers(ledger, findings)
    running = sum(worker["runningCount"] for worker in workers)
    status: dict[str, Any] = {
        "observedGeneration": findings.generation,
        "version": ledger.version,
        "tableVersion": ledger.table,
        "workerCount": len(ledger.slots),
        "jobCount": len(assignment.workers) + len(assignment.unassigned),
        "assignedCount": len(assignment.workers),
        "runningCount": running,
        "workers": workers,
        "unassigned": [
            {"job": job, "reason": str(reason)}
            for job, reason in list(assignment.unassigned.items())[:_UNASSIGNED]
        ],
        "record": handover.dump(ledger),
    }
    found = _conditions(ledger, assignment, findings)
    status["conditions"] = _dated(before.get("conditions") or [], found, findings.generation, now)
    return status


def refused(
    before: Mapping[str, Any], message: str, *, generation: int, now: str, reason: str = "InvalidSpec"
) -> dict[str, Any]:
    """Return the status of a Swarm that is not reconciled; by default because its specification or record is invalid."""
    unknown = (None, reason, "")
    found = {"Assigned": unknown, "Converged": unknown, "Degraded": (True, reason, message)}
    conditions = _dated(before.get("conditions") or [], found, generation, now)
    return {**before, "observedGeneration": generation, "conditions": conditions}


def _workers(ledger: Ledger, findings: Findings) -> list[dict[str, Any]]:
    workers = []
    room = _LISTED
    rows = [
        (slot.name, slot.jobs, ledger.holder_of(slot) or Holder(pod=slot.pod, uid=""))
        for slot in ledger.slots.values()
    ]
    rows += [(holder.pod, [], holder) for holder in _leaving(ledger)]
    for name, jobs, holder in rows:
        report = findings.acknowledged.get(holder.uid)
        plain = findings.plain.get(holder.uid, ()) if report is None else ()
        current = report if report is not None and report.session == holder.session else None
        row: dict[str, Any] = {
            "name": name,
            "pod": holder.pod,
            "cluster": holder.node,
            "jobCount": len(jobs),
            "runningCount": _running(holder, current) if current is not None else len(plain),
            "assignedVersion": holder.version,
            "acknowledgedVersion": current.version if current is not None else 0,
        }
        room -= sum(map(len, jobs)) + 4 * len(jobs)
        if room > 0:
            row["jobs"] = jobs
        if holder.stop:
            row["stopping"] = holder.stop[:_UNASSIGNED]
        if report is not None and report.failing:
            row["failing"] = dict(sorted(report.failing.items())[:_UNASSIGNED])
        workers.append(row)
    return workers


def _running(holder: Holder, report: Acknowledgement) -> int:
    """Return the number of running jobs. A number that a worker reports without a list is limited to the granted jobs."""
    if report.running is not None:
        return len(report.running)
    return max(0, min(report.running_count, len(holder.start) + len(holder.stop)))


def _leaving(ledger: Ledger) -> list[Holder]:
    """Return pods without a slot that may still run jobs."""
    slots = {slot.uid for slot in ledger.slots.values()}
    return [
        holder for uid, holder in ledger.holders.items() if uid not in slots and (holder.start or holder.stop)
    ]


def _conditions(ledger: Ledger, assignment: Assignment, findings: Findings) -> dict[str, _Verdict]:
    """Return the verdicts by condition type."""
    missing = assignment.unassigned
    reasons = sorted({str(reason) for reason in missing.values()})
    assigned: _Verdict = True, "AllAssigned", "every job has a worker"
    converged: _Verdict = (
        True,
        "AllAcknowledged",
        "every job has a worker, and every worker runs its assigned jobs",
    )
    if missing:
        message = f"{count(len(missing), 'job has', 'jobs have')} no worker: {', '.join(reasons)}"
        assigned, converged = (False, reasons[0], message), (False, "JobsUnassigned", message)
    elif waiting := _waiting(ledger, findings):
        converged = False, "HandingOver", waiting
    return {"Assigned": assigned, "Converged": converged, "Degraded": _degraded(ledger, findings)}


def _waiting(ledger: Ledger, findings: Findings) -> str:
    behind = []
    for slot in ledger.slots.values():
        holder = ledger.holder_of(slot)
        report = findings.acknowledged.get(slot.uid)
        is_plain = report is None and set(findings.plain.get(slot.uid, ())) == set(slot.jobs)
        if is_plain and not slot.unready_since:
            continue
        if (
            slot.unready_since
            or holder is None
            or report is None
            or report.session != holder.session
            or report.version < holder.version
            or set(holder.start) != set(slot.jobs)
            or holder.stop
            or (report.running is not None and set(report.running) != set(slot.jobs))
        ):
            behind.append(slot.name)
    behind += [holder.pod for holder in _leaving(ledger)]
    return f"waiting for {len(behind)} workers: {', '.join(sorted(behind)[:5])}" if behind else ""


def _degraded(ledger: Ledger, findings: Findings) -> _Verdict:
    if findings.problems:
        reason, message = findings.problems[0]
        return True, reason, message
    if findings.unknown:
        pods = sorted(ledger.holders[uid].pod for uid in findings.unknown if uid in ledger.holders)
        message = (
            f"pods {', '.join(pods)} were deleted without proof that their containers have stopped; their jobs wait. "
            "If you know that they have stopped, write their UIDs into annotation swarm.virtual-node.io/gone of the Swarm: "
            + ",".join(sorted(findings.unknown))
        )
        return True, "OwnerUnknown", message
    silent = sorted(holder.pod for holder in ledger.holders.values() if holder.silent)
    if silent:
        message = (
            f"pods {', '.join(silent[:5])}: the workers do not report; their jobs move to workers that do"
        )
        return True, "WorkersSilent", message
    failing = {job: text for report in findings.acknowledged.values() for job, text in report.failing.items()}
    if failing:
        job, text = min(failing.items())
        return True, "JobsFailing", f"{len(failing)} jobs cannot be started or stopped; {job}: {text}"
    return False, "Healthy", ""


def _dated(
    before: Sequence[Mapping[str, Any]],
    found: Mapping[str, _Verdict],
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    old = {condition.get("type"): condition for condition in before}
    conditions = []
    for kind, (holds, reason, message) in found.items():
        status = "Unknown" if holds is None else str(holds)
        last = old.get(kind) or {}
        since = last.get("lastTransitionTime") if last.get("status") == status else None
        conditions.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "observedGeneration": generation,
                "lastTransitionTime": since or now,
            }
        )
    return conditions


def set_metrics(swarm: Object, status: Mapping[str, Any]) -> None:
    """Set the metrics from a status."""
    for state, field_name in _STATES.items():
        _JOBS.labels(swarm.namespace, swarm.name, state).set(status[field_name])
    behind = [
        worker for worker in status["workers"] if worker["acknowledgedVersion"] < worker["assignedVersion"]
    ]
    _WORKERS.labels(swarm.namespace, swarm.name, "all").set(len(status["workers"]))
    _WORKERS.labels(swarm.namespace, swarm.name, "behind").set(len(behind))


def count_moved(swarm: Object, jobs: int) -> None:
    """Count jobs that moved to another worker."""
    _MOVED.labels(swarm.namespace, swarm.name).inc(jobs)


def forget_metrics(key: str) -> None:
    """Remove the metrics of a deleted Swarm."""
    labels = key.split("/", 1)
    with contextlib.suppress(KeyError):
        _MOVED.remove(*labels)
    for metric, states in ((_JOBS, tuple(_STATES)), (_WORKERS, ("all", "behind"))):
        for state in states:
            with contextlib.suppress(KeyError):
                metric.remove(*labels, state)
