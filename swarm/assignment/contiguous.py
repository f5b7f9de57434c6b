"""Contiguous slices of the job list: the rule of k8s-swarm, with its defect corrected.

k8s-swarm starts slice i at ``i × size of slice i``, so jobs are assigned twice or never when the division has a
remainder. Here slice i starts where slice i − 1 ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from swarm.assignment.model import Assignment, Job, Problem, Reason


def assign(problem: Problem) -> Assignment:
    """Divide jobs of equal affinity into contiguous slices; weights are ignored."""
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
