"""The conditions of a Swarm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from swarm.assignment import Job
from swarm.handover import Acknowledgement, Ledger, Slot
from swarm.planning import STATEFUL_SET, Observed, Pod, Wanted, Workers, advance
from swarm.status import Findings, refused, render
from tests.unit.swarm.controller.scene import Scene, so

_JOBS = [Job("a"), Job("b")]


class Swarm:
    """A Swarm with two workers that acknowledge everything."""

    def __init__(self, **wanted: Any) -> None:
        self.wanted = Wanted(
            **{"jobs": _JOBS, "workers": Workers(STATEFUL_SET, 2, grace=30), "fence": 8, **wanted}
        )
        self.pods = [Pod("w-0", "u0", ready=True), Pod("w-1", "u1", ready=True)]
        self.ledger = Ledger()
        self.now = 100.0
        self.status: dict[str, Any] = {}

    def reconcile(self, *, times: int = 4, fenced: tuple[str, ...] = ()) -> None:
        """Compute records and reports until nothing changes."""
        for _ in range(times):
            reports = self.reports()
            observed = Observed(self.pods, reports, fenced=fenced)
            self.ledger, assignment = advance(self.ledger, self.wanted, observed, now=self.now)
            findings = Findings(self.reports())
            self.status = render(self.status, self.ledger, assignment, findings, now="")

    def reports(self) -> dict[str, Acknowledgement]:
        """Return reports that agree with the record."""
        return {
            uid: Acknowledgement(
                pod_uid=uid,
                session=holder.session or ("" if holder.life else f"{uid}-1"),
                life=holder.life or 1,
                version=holder.version,
                running=holder.start,
                fence_seconds=8,
            )
            for uid, holder in self.ledger.holders.items()
        }

    def condition(self, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        found = next(one for one in self.status["conditions"] if one["type"] == kind)
        return found["status"], found["reason"]


@pytest.fixture
def swarm() -> Swarm:
    """A converged Swarm."""
    swarm = Swarm()
    swarm.reconcile()
    assert swarm.condition("Converged") == ("True", "AllAcknowledged")
    assert swarm.status["runningCount"] == 2
    return swarm


def test_swarm_with_jobs_and_no_worker_has_not_converged():
    """No worker is behind, and no job runs."""
    swarm = Swarm(workers=Workers(STATEFUL_SET, 0))
    swarm.reconcile()
    assert swarm.condition("Assigned") == ("False", "NoWorkers")
    assert swarm.condition("Converged") == ("False", "JobsUnassigned")


def test_swarm_without_jobs_has_converged_without_workers():
    """Nothing is left to do."""
    swarm = Swarm(jobs=[], workers=Workers(STATEFUL_SET, 0))
    swarm.reconcile()
    assert swarm.condition("Converged") == ("True", "AllAcknowledged")


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"affinities": {"b": lambda _: False}}, "NoMatchingWorker"),
        ({"jobs": [*_JOBS, *(Job(name, dedicated=True) for name in "cde")]}, "NoDedicatedWorker"),
        ({"jobs": [*_JOBS, Job("c")], "max_per_worker": 1}, "MaxPerWorkerReached"),
    ],
    ids=["affinity", "dedicated", "limit"],
)
def test_swarm_with_a_job_that_no_worker_may_take_has_not_converged(wanted, reason):
    """Although every worker runs all jobs that it got."""
    swarm = Swarm(**wanted)
    swarm.reconcile()
    assert swarm.condition("Assigned") == ("False", reason)
    assert swarm.condition("Converged") == ("False", "JobsUnassigned")


@pytest.mark.parametrize(("lost", "later"), [(1, "True"), (2, "False")])
def test_swarm_with_an_unready_worker_has_not_converged(swarm, lost, later):
    """Until its jobs have moved. If no worker is ready, they stay assigned."""
    before = list(swarm.pods)
    swarm.pods = [replace(pod, ready=number >= lost) for number, pod in enumerate(swarm.pods)]
    swarm.reconcile()
    assert swarm.condition("Assigned") == ("True", "AllAssigned")
    assert swarm.condition("Converged") == ("False", "HandingOver")
    swarm.now += 40
    swarm.reconcile()
    assert swarm.condition("Converged")[0] == later
    swarm.pods = before
    swarm.reconcile()
    assert swarm.condition("Converged") == ("True", "AllAcknowledged")


def test_swarm_has_converged_again_when_others_run_the_jobs_of_a_silent_worker(swarm):
    """Condition Degraded names the silent worker."""
    swarm.reconcile(times=1, fenced=("u1",))
    swarm.reconcile()
    assert swarm.condition("Converged") == ("True", "AllAcknowledged")
    assert swarm.condition("Degraded") == ("True", "WorkersSilent")
    assert swarm.status["runningCount"] == 2


def test_swarm_with_only_silent_workers_has_not_converged(swarm):
    """Their jobs stay assigned and run nowhere."""
    swarm.reconcile(times=1, fenced=("u0", "u1"))
    swarm.reconcile()
    assert swarm.condition("Assigned") == ("True", "AllAssigned")
    assert swarm.condition("Converged") == ("False", "HandingOver")
    assert swarm.condition("Degraded") == ("True", "WorkersSilent")
    assert swarm.status["runningCount"] == 0


def test_worker_of_k8s_swarm_counts_only_while_its_pod_is_ready():
    """It acknowledges nothing; its jobs are read over HTTP."""
    slot = Slot(name="w-0", index=0, uid="u0", jobs=["a"])
    found = []
    for since in (0.0, 100.0):
        ledger = Ledger(slots={"w-0": msgspec.structs.replace(slot, unready_since=since)})
        assignment = advance(ledger, Wanted([]), Observed([], {}), now=0)[1]
        status = render({}, ledger, assignment, Findings({}, plain={"u0": ["a"]}), now="")
        found += [one["status"] for one in status["conditions"] if one["type"] == "Converged"]
    assert found == ["True", "False"]


def test_conditions_of_an_invalid_specification_are_unknown(swarm):
    """The Swarm is not reconciled, so the earlier ones may be wrong."""
    swarm.status = refused(swarm.status, "spec.workers: set one", generation=2, now="")
    assert swarm.condition("Assigned") == ("Unknown", "InvalidSpec")
    assert swarm.condition("Converged") == ("Unknown", "InvalidSpec")
    assert swarm.condition("Degraded") == ("True", "InvalidSpec")
    assert swarm.status["runningCount"] == 2
    assert swarm.status["observedGeneration"] == 2


async def test_controller_reports_both():
    """In the status of Swarms that exist at its start."""
    scene = Scene()
    scene.swarm(jobs=[{"name": "a"}])
    scene.swarm("t", jobs=[{"name": "a"}], workers={})
    async with scene.running():
        await so(lambda: scene.condition(kind="Converged")[0], "JobsUnassigned")
        await so(lambda: scene.condition("t", "Converged")[0], "InvalidSpec")
