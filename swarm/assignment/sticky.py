"""Keeps jobs on their workers, and moves only as many jobs as an even division needs."""

from __future__ import annotations

import heapq

from swarm.assignment import weighted
from swarm.assignment.model import Assignment, Job, Problem, Reason


def assign(problem: Problem) -> Assignment:
    """Divide by number if weights are equal and no job has an affinity, otherwise by weight.

    Two workers differ by at most one job, or by at most 10 % of the mean weight (see ``weighted``).
    """
    first = problem.jobs[0]
    if all(job.weight == first.weight and job.allowed is None for job in problem.jobs):
        return _by_count(problem)
    return weighted.assign(problem)


def _by_count(problem: Problem) -> Assignment:
    """Divide so that numbers of jobs differ by at most one, with the fewest possible moves.

    Every worker keeps as many jobs as its quota allows. The quotas that are one job larger are given to the workers with
    the most jobs, so that the number of jobs above quota is as small as possible.
    """
    held: dict[str, list[Job]] = {worker: [] for worker in problem.workers}
    new: list[Job] = []
    for job in problem.jobs:
        held.get(problem.previous.get(job.name, ""), new).append(job)
    total = min(len(problem.jobs), problem.cap * len(problem.workers))
    size, rest = divmod(total, len(problem.workers))
    # sorted() is stable, so ties go to the lowest index.
    by_load = sorted(problem.workers, key=lambda worker: -len(held[worker]))
    surplus = []
    result = Assignment()
    for position, worker in enumerate(by_load):
        quota = size + (position < rest)
        surplus += held[worker][quota:]
        result.workers.update((job.name, worker) for job in held[worker][:quota])
        del held[worker][quota:]
    room = [(len(held[worker]), index, worker) for index, worker in enumerate(problem.workers)]
    heapq.heapify(room)
    # Jobs that already have a worker come first. If the cap leaves no room for all jobs, the others stay unassigned.
    for job in surplus + new:
        load, index, worker = room[0]
        if load >= problem.cap:
            result.unassigned[job.name] = Reason.CAPACITY
            continue
        result.workers[job.name] = worker
        heapq.heapreplace(room, (load + 1, index, worker))
    return result
