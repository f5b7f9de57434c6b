"""Gives each dedicated job a worker of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

from swarm.assignment.model import Assignment, Job, Reason

Choose = Callable[[Job, Container[str]], str | None]
"""Returns the worker for a job, among given free workers; None: no free worker satisfies the job's affinity."""
Choice = Callable[[Sequence[str]], Choose]
"""Returns a function that chooses among these workers, which satisfy one affinity. A worker that is not free at one call
must not be free at a later call."""


def place(
    jobs: Sequence[Job], workers: Sequence[str], previous: Mapping[str, str], choice: Choice
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
    # Users choose the numbers of jobs and workers, so workers are compared once for each affinity.
    fitting: dict[frozenset[str] | None, tuple[bool, Choose]] = {}
    for job in wanted:
        if job.name in kept:
            result.workers[job.name] = kept[job.name]
            continue
        if job.allowed not in fitting:
            matching = [worker for worker in workers if job.fits(worker)]
            fitting[job.allowed] = bool(matching), choice([worker for worker in matching if worker in free])
        matches, choose = fitting[job.allowed]
        chosen = choose(job, free) if len(workers) - len(free) < room else None
        if chosen is None:
            result.unassigned[job.name] = Reason.NO_DEDICATED_WORKER if matches else Reason.NO_MATCHING_WORKER
            continue
        del free[chosen]
        result.workers[job.name] = chosen
    return result


def least_moves(jobs: Sequence[Job], previous: Mapping[str, str]) -> Choice:
    """Return a choice of the worker from which the fewest shared jobs must move; ties: the lowest index."""
    load = Counter(previous[job.name] for job in jobs if not job.dedicated and job.name in previous)

    def choice(workers: Sequence[str]) -> Choose:
        waiting = sorted(workers, key=lambda worker: load[worker])
        waiting.reverse()

        def choose(_job: Job, free: Container[str]) -> str | None:
            while waiting and waiting[-1] not in free:
                waiting.pop()
            return waiting[-1] if waiting else None

        return choose

    return choice
