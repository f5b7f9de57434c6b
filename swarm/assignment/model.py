"""Types of an assignment."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Only its name identifies it: if another field changes, it is still the same job."""

    name: str
    weight: int = 1
    dedicated: bool = False
    """Whether the job must be the only job of its worker."""
    allowed: frozenset[str] | None = None
    """Workers that satisfy the job's affinity; None: all. For speed, use the same set object for jobs of equal affinity."""

    def fits(self, worker: str) -> bool:
        """Report whether the job's affinity allows a worker."""
        return self.allowed is None or worker in self.allowed


class Reason(StrEnum):
    """Why a job has no worker."""

    NO_WORKERS = "NoWorkers"
    NO_MATCHING_WORKER = "NoMatchingWorker"
    NO_DEDICATED_WORKER = "NoDedicatedWorker"
    CAPACITY = "MaxPerWorkerReached"


@dataclass(slots=True)
class Assignment:
    """The worker of each job, and the jobs without a worker."""

    workers: dict[str, str] = field(default_factory=dict)
    """Job → worker."""
    unassigned: dict[str, Reason] = field(default_factory=dict)

    def shares(self, workers: Iterable[str]) -> dict[str, list[str]]:
        """Return the jobs of each worker, in the order of their assignment."""
        shares: dict[str, list[str]] = {worker: [] for worker in workers}
        for job, worker in self.workers.items():
            shares[worker].append(job)
        return shares


@dataclass(frozen=True, slots=True)
class Problem:
    """Input of a strategy: the shared jobs and the workers to divide them over. Neither list is empty."""

    jobs: Sequence[Job]
    workers: Sequence[str]
    """Workers without dedicated jobs, ordered by index."""
    previous: Mapping[str, str]
    """Job → worker in the previous assignment; may contain deleted jobs and workers."""
    cap: int
    """Largest number of jobs per worker."""


Choose = Callable[[Job, Container[str]], str | None]
"""Returns the worker for a job, among given free workers; None: no free worker satisfies the job's affinity."""
Choice = Callable[[Sequence[str]], Choose]
"""Returns a function that chooses among these workers, which satisfy one affinity. A worker that is not free at one call
must not be free at a later call."""
