"""Divides jobs over workers by the selected strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from swarm.assignment import contiguous, dedicated, rendezvous, sticky
from swarm.assignment.model import Assignment, Job, Problem, Reason

STICKY = "Sticky"
CONTIGUOUS = "Contiguous"
RENDEZVOUS = "Rendezvous"

_SHARED: Mapping[str, Callable[[Problem], Assignment]] = {
    STICKY: sticky.assign,
    CONTIGUOUS: contiguous.assign,
    RENDEZVOUS: rendezvous.assign,
}


def assign(
    jobs: Sequence[Job],
    workers: Sequence[str],
    *,
    previous: Mapping[str, str] | None = None,
    strategy: str = STICKY,
    max_per_worker: int = 0,
) -> Assignment:
    """Return an assignment. Equal arguments give equal assignments.

    Args:
        jobs: with unique names, in the order of the Swarm's list.
        workers: names in the order of their index. A name must denote the same worker in successive calls.
        previous: job → worker in the previous assignment. Only ``Sticky`` uses it.
        strategy: one of the constants of this module.
        max_per_worker: 0 means no limit.
    """
    if not workers:
        return Assignment(unassigned={job.name: Reason.NO_WORKERS for job in jobs})
    before: Mapping[str, str] = (previous or {}) if strategy == STICKY else {}
    choice = rendezvous.best if strategy == RENDEZVOUS else dedicated.least_moves(jobs, before)
    result = dedicated.place(jobs, workers, before, choice)
    taken = set(result.workers.values())
    free = [worker for worker in workers if worker not in taken]
    shared = []
    has_worker: dict[frozenset[str] | None, bool] = {None: True}
    for job in jobs:
        if job.dedicated:
            continue
        if job.allowed is not None and job.allowed not in has_worker:
            has_worker[job.allowed] = not job.allowed.isdisjoint(free)
        if has_worker[job.allowed]:
            shared.append(job)
        else:
            result.unassigned[job.name] = Reason.NO_MATCHING_WORKER
    if shared:
        cap = max_per_worker or len(shared)
        divided = _SHARED[strategy](Problem(shared, free, before, cap))
        result.workers.update(divided.workers)
        result.unassigned.update(divided.unassigned)
    # In the order of ``jobs``, so that equal divisions give equal tables.
    result.workers = {job.name: result.workers[job.name] for job in jobs if job.name in result.workers}
    return result
