"""What an assignment is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Job:
    """One job, known by its name alone: a change of any other field does not make it another job."""

    name: str
    weight: int = 1
    dedicated: bool = False
    """Runs alone on its worker."""
    allowed: frozenset[str] | None = None
    """Workers that satisfy the job's affinity; None: all. Share one set between jobs of equal affinity."""

    def fits(self, worker: str) -> bool:
        """Whether the affinity allows this worker."""
        return self.allowed is None or worker in self.allowed


class Reason(StrEnum):
    """Why a job has no worker."""

    NO_WORKERS = "NoWorkers"
    NO_MATCHING_WORKER = "NoMatchingWorker"
    NO_DEDICATED_WORKER = "NoDedicatedWorker"
    CAPACITY = "MaxPerWorkerReached"


@dataclass(slots=True)
class Assignment:
    """Which worker has which job, and which jobs have none."""

    workers: dict[str, str] = field(default_factory=dict)
    """Job → worker."""
    unassigned: dict[str, Reason] = field(default_factory=dict)

    def shares(self, workers: Iterable[str]) -> dict[str, list[str]]:
        """The jobs of each worker, in the order in which they were assigned."""
        shares: dict[str, list[str]] = {worker: [] for worker in workers}
        for job, worker in self.workers.items():
            shares[worker].append(job)
        return shares


@dataclass(frozen=True, slots=True)
class Problem:
    """Shared jobs that one strategy divides over workers without dedicated jobs; neither list is empty."""

    jobs: Sequence[Job]
    workers: Sequence[str]
    """In the order of their index."""
    previous: Mapping[str, str]
    """Job → worker of the assignment before; may name jobs and workers that no longer exist."""
    cap: int
    """Jobs that one worker may have."""
