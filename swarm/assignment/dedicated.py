"""Gives each dedicated job a worker of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from swarm.assignment.model import Assignment, Job, Reason

Choice = Callable[[Job, Sequence[str]], str]


def place(
    jobs: Sequence[Job], workers: Sequence[str], previous: Mapping[str, str], choose: Choice
) -> Assignment:
    """Return the workers of the dedicated jobs.

    A job with a worker keeps it. While there are shared jobs, one worker stays free of dedicated jobs. Dedicated jobs
    without a worker stay unassigned, because they must not share one, and shared jobs need at least one worker.
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
    """Return a function that chooses the worker with the fewest shared jobs to move away, then the lowest index."""
    load = Counter(previous[job.name] for job in jobs if not job.dedicated and job.name in previous)

    def choose(job: Job, possible: Sequence[str]) -> str:
        return min(possible, key=lambda worker: load[worker])

    return choose
