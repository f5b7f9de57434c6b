"""Sticky division of jobs with different weights or affinities.

The exact optimum is NP-hard (multiprocessor scheduling). Jobs keep their workers, jobs without one go to the least
loaded worker, heaviest first, and then single jobs move from heavier to lighter workers.

If affinity and cap do not prevent it, the loads of two workers differ by at most the larger of 10 % of the mean and the
heaviest weight: while they differ by more, every job of the heavier worker can move and makes the loads more equal.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from swarm.assignment.model import Assignment, Job, Problem, Reason

TOLERANCE = 0.1
"""Jobs move only if the loads of two workers differ by more than this fraction of the mean."""


def assign(problem: Problem) -> Assignment:
    """Divide by weight. Loads differ by ≤ 0.1 × mean if weights are ≤ 0.1 × mean, and affinity and cap allow."""
    division = _Division(problem)
    loose = division.keep()
    unplaced = division.place(loose)
    division.level()
    result = Assignment(
        {job.name: division.worker_of[job.name] for job in problem.jobs if job not in unplaced}
    )
    result.unassigned = dict.fromkeys((job.name for job in unplaced), Reason.CAPACITY)
    return result


@dataclass(slots=True)
class _Division:
    problem: Problem
    worker_of: dict[str, str] = field(default_factory=dict)
    held: dict[str, dict[str, Job]] = field(init=False)
    load: dict[str, int] = field(init=False)
    order: list[tuple[int, int]] = field(default_factory=list)
    """(load, index of worker), ascending; set by ``place``."""
    mean: float = field(init=False)

    def __post_init__(self) -> None:
        self.held = {worker: {} for worker in self.problem.workers}
        self.load = dict.fromkeys(self.problem.workers, 0)
        self.mean = sum(job.weight for job in self.problem.jobs) / len(self.problem.workers)

    def keep(self) -> list[Job]:
        """Leave jobs with their workers as far as affinity, cap and load allow; return the other jobs."""
        loose = []
        for job in self.problem.jobs:
            worker = self.problem.previous.get(job.name, "")
            if worker in self.held and job.fits(worker) and len(self.held[worker]) < self.problem.cap:
                self._add(job, worker)
            else:
                loose.append(job)
        for worker, jobs in self.held.items():
            loose += self._surplus(worker, jobs)
        return loose

    def _surplus(self, worker: str, jobs: dict[str, Job]) -> list[Job]:
        """Remove the heaviest jobs of an overloaded worker without making it underloaded; return the removed jobs."""
        surplus = []
        if self.load[worker] > self.mean * (1 + TOLERANCE):
            for job in sorted(jobs.values(), key=lambda job: (-job.weight, job.name)):
                if self.load[worker] - job.weight >= self.mean * (1 - TOLERANCE / 2):
                    self._remove(job)
                    surplus.append(job)
                if self.load[worker] <= self.mean * (1 + TOLERANCE):
                    break
        return surplus

    def place(self, loose: list[Job]) -> set[Job]:
        """Assign jobs, heaviest first, to the least loaded worker with room; return jobs for which no worker has room."""
        unplaced = set()
        indexes = {worker: index for index, worker in enumerate(self.problem.workers)}
        order = sorted((self.load[worker], index) for worker, index in indexes.items())
        # Jobs that had a worker come first. If the cap leaves no room for all jobs, new ones stay unassigned.
        for job in sorted(loose, key=lambda job: (job.name not in self.problem.previous, -job.weight)):
            found = next(
                (
                    place
                    for place, (_, index) in enumerate(order)
                    if self._has_room(job, self.problem.workers[index])
                ),
                None,
            )
            if found is None:
                unplaced.add(job)
                continue
            _, index = order.pop(found)
            worker = self.problem.workers[index]
            self._add(job, worker)
            bisect.insort(order, (self.load[worker], index))
        self.order = order
        return unplaced

    def level(self) -> None:
        """Move single jobs while two workers differ by more than the tolerance and a move makes the loads more equal."""
        # Every move reduces the sum of the squared loads, so the loop terminates; the limit bounds its time.
        for _ in range(2 * len(self.problem.jobs)):
            if not any(self._move(high, low) for high, low in self._unequal()):
                return

    def _unequal(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of a heavier and a lighter worker (indexes), of which one differs too much from an extreme worker.

        First come workers that are too heavy for the lightest worker, then those that are too light for the heaviest.
        """
        (lightest, _), (heaviest, _) = self.order[0], self.order[-1]
        for heavy, high in reversed(self.order):
            if heavy - lightest <= self.mean * TOLERANCE:
                break
            for light, low in self.order:
                if heavy - light <= 1:
                    break
                yield high, low
        for light, low in self.order:
            if heaviest - light <= self.mean * TOLERANCE:
                break
            for heavy, high in reversed(self.order):
                if heavy - light <= 1:
                    break
                yield high, low

    def _move(self, high: int, low: int) -> bool:
        """Move the job that best balances two workers; return False if no allowed move makes loads more equal."""
        source, target = self.problem.workers[high], self.problem.workers[low]
        difference = self.load[source] - self.load[target]
        over, under = self.load[source] - self.mean, self.mean - self.load[target]
        ideal = min(over, under) if over > 0 and under > 0 else difference / 2
        candidates = [
            job
            for job in self.held[source].values()
            if job.weight < difference and self._has_room(job, target)
        ]
        if not candidates:
            return False
        job = min(candidates, key=lambda job: (abs(job.weight - ideal), job.name))
        self.order.remove((self.load[source], high))
        self.order.remove((self.load[target], low))
        self._remove(job)
        self._add(job, target)
        bisect.insort(self.order, (self.load[source], high))
        bisect.insort(self.order, (self.load[target], low))
        return True

    def _has_room(self, job: Job, worker: str) -> bool:
        return job.fits(worker) and len(self.held[worker]) < self.problem.cap

    def _add(self, job: Job, worker: str) -> None:
        self.held[worker][job.name] = job
        self.load[worker] += job.weight
        self.worker_of[job.name] = worker

    def _remove(self, job: Job) -> None:
        worker = self.worker_of.pop(job.name)
        del self.held[worker][job.name]
        self.load[worker] -= job.weight
