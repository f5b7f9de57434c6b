"""Gives each dedicated job a worker of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from swarm.assignment.model import Assignment, Job, Reason

Choice = Callable[[Job, Sequence[str]], str]


def place(
    jobs: Sequence[Job], workers: Sequence[str], previous: Mapping[str, str], choose: Choice
) -> Assignment:
    """Assign each dedicated job to a worker that gets no other job.

    A job keeps its previous worker if possible. While there are shared jobs, one worker gets no dedicated job, because
    shared jobs need at least one worker. Dedicated jobs for which no worker is left stay unassigned.
    """
    wanted = [job for job in jobs if job.dedicated]
    room = len(workers) - (len(wanted) < len(jobs))
    free = dict.fromkeys(workers)
    kept: dict[str, str] = {}
    for job in wanted:
        worker = previous.get(job.name)
        if len(kept) < room and worker in free and job.fits(worker):
            del free[worker]
            kept[job.name] = worker
    result = Assignment()
    for job in wanted:
        if job.name in kept:
            result.workers[job.name] = kept[job.name]
            continue
        possible = [worker for worker in free if job.fits(worker)]
        if len(workers) - len(free) >= room or not possible:
            matches = job.allowed is None or not job.allowed.isdisjoint(workers)
            result.unassigned[job.name] = Reason.NO_DEDICATED_WORKER if matches else Reason.NO_MATCHING_WORKER
            continue
        worker = choose(job, possible)
        del free[worker]
        result.workers[job.name] = worker
    return result


def least_moves(jobs: Sequence[Job], previous: Mapping[str, str]) -> Choice:
    """Return a function that chooses the worker from which the fewest shared jobs must move; ties: the lowest index."""
    load = Counter(previous[job.name] for job in jobs if not job.dedicated and job.name in previous)

    def choose(job: Job, possible: Sequence[str]) -> str:
        return min(possible, key=lambda worker: load[worker])

    return choose
