"""Divides jobs over workers by the selected strategy.

*Rendezvous* hashing: each job is assigned to the worker with the highest hash of both names. The result does not depend on the
previous assignment. The cost is an uneven division (measured: the busiest worker has 1.2 to 1.6 times the mean) and a hash per
job and worker.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

from swarm.assignment import sticky
from swarm.assignment.model import Assignment, Choice, Choose, Job, Problem, Reason

STICKY = "Sticky"
CONTIGUOUS = "Contiguous"
RENDEZVOUS = "Rendezvous"
_MOST_HASHES = 5_000_000
"""20,000 jobs and 250 workers; about five seconds."""
_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4): spreads neighbouring keys."""


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
    choice = highest_hash if strategy == RENDEZVOUS else least_moves(jobs, before)
    result = place(jobs, workers, before, choice)
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


def contiguous(problem: Problem) -> Assignment:
    """Divide jobs of equal affinity into contiguous slices: the rule of k8s-swarm. Weights are ignored.

    k8s-swarm starts slice i at ``i × size of slice i``, so jobs are assigned twice or never when the division has a
    remainder. Here slice i starts where slice i - 1 ends.
    """
    result = Assignment()
    counts = dict.fromkeys(problem.workers, 0)
    groups: dict[frozenset[str] | None, list[Job]] = {}
    for job in problem.jobs:
        groups.setdefault(job.allowed, []).append(job)
    for allowed, jobs in groups.items():
        workers = [worker for worker in problem.workers if allowed is None or worker in allowed]
        for worker, (start, end) in zip(workers, slices(len(jobs), len(workers)), strict=True):
            last = min(end, start + problem.cap - counts[worker])
            counts[worker] += last - start
            result.workers.update((job.name, worker) for job in jobs[start:last])
            result.unassigned.update((job.name, Reason.CAPACITY) for job in jobs[last:end])
    return result


def slices(jobs: int, workers: int) -> Sequence[tuple[int, int]]:
    """Return start and end of each worker's slice; with a remainder, the first slices get one more job."""
    if not workers:
        return []
    size, rest = divmod(jobs, workers)
    starts = [index * size + min(index, rest) for index in range(workers + 1)]
    return list(itertools.pairwise(starts))


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


def check_size(jobs: int, workers: int) -> None:
    """Check that the assignment takes seconds at most.

    Raises:
        ValueError: there are too many jobs and workers; the message says what to change.
    """
    if jobs * workers > _MOST_HASHES:
        raise ValueError(
            f"spec.strategy: Rendezvous compares each job with each worker, and {jobs:,} jobs with {workers:,} workers are "
            f"more than {_MOST_HASHES:,} comparisons. Use Sticky, or divide the Swarm"
        )


def rendezvous(problem: Problem) -> Assignment:
    """Assign each job to the worker with the highest hash, among allowed workers with fewer than ``cap`` jobs."""
    result = Assignment()
    counts = dict.fromkeys(problem.workers, 0)
    codes = {worker: _code(worker) for worker in problem.workers}
    groups: dict[frozenset[str] | None, tuple[list[str], list[int]]] = {}
    for job in problem.jobs:
        if job.allowed not in groups:
            matching = [worker for worker in codes if job.fits(worker)]
            groups[job.allowed] = matching, [codes[worker] for worker in matching]
        workers, their_codes = groups[job.allowed]
        if not workers:
            result.unassigned[job.name] = Reason.CAPACITY
            continue
        worker = workers[_highest(job, their_codes)]
        result.workers[job.name] = worker
        counts[worker] += 1
        if counts[worker] >= problem.cap:
            del codes[worker]
            groups.clear()
    return result


def highest_hash(workers: Sequence[str]) -> Choose:
    """Return a function that chooses the free worker with the highest hash for a job."""
    codes = {worker: _code(worker) for worker in workers}

    def choose(job: Job, free: Container[str]) -> str | None:
        left = [worker for worker in codes if worker in free]
        return left[_highest(job, [codes[worker] for worker in left])] if left else None

    return choose


def _highest(job: Job, codes: Sequence[int]) -> int:
    # One expression for speed: this is the inner loop of jobs × workers.
    own, mask, multiplier = _code(job.name), _MASK, _MULTIPLIER
    scores = [(own ^ code) * multiplier & mask for code in codes]
    return scores.index(max(scores))


def _code(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


_SHARED: Mapping[str, Callable[[Problem], Assignment]] = {
    STICKY: sticky.assign,
    CONTIGUOUS: contiguous,
    RENDEZVOUS: rendezvous,
}
