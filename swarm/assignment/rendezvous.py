"""Rendezvous hashing: each job is assigned to the worker with the highest hash of both names.

The result does not depend on the previous assignment. The cost is an uneven division (measured: the busiest worker has 1.2 to
1.6 times the mean) and a hash per job and worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence

from swarm.assignment.dedicated import Choose
from swarm.assignment.model import Assignment, Job, Problem, Reason

_MOST_HASHES = 5_000_000
"""20,000 jobs and 250 workers; about five seconds."""
_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4): spreads neighbouring keys."""


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


def assign(problem: Problem) -> Assignment:
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


def best(workers: Sequence[str]) -> Choose:
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
