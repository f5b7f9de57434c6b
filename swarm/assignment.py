"""Decides which worker runs which job, by the selected strategy. No IO.

*Sticky*: jobs stay on their workers, and only as many jobs move as an even division needs.
Jobs of equal weight without affinities are divided by number. For others, the exact optimum is NP-hard (multiprocessor
scheduling). Jobs keep their workers, jobs without one go to the least loaded worker, heaviest first, and then single jobs move
from heavier to lighter workers.

If affinity and cap do not prevent it, the loads of two workers differ by at most the larger of 10 % of the mean and the
heaviest weight: while they differ by more, every job of the heavier worker can move and makes the loads more equal.

*Rendezvous*: each job is assigned to the worker with the highest hash of both names. The result does not depend on the
previous assignment. The cost is an uneven division (measured: the busiest worker has 1.2 to 1.6 times the mean) and a hash per
job and worker.
"""

from __future__ import annotations

import bisect
import hashlib
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

STICKY = "Sticky"
CONTIGUOUS = "Contiguous"
RENDEZVOUS = "Rendezvous"
_MOST_HASHES = 5_000_000
"""20,000 jobs and 250 workers; about five seconds."""
_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4): spreads neighbouring keys."""
TOLERANCE = 0.1
"""Jobs move only if the loads of two workers differ by more than this fraction of the mean."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Only its name identifies it: if another field changes, it is still the same job."""

    name: str
    weight: int = 1
    dedicated: bool = False
    """Whether the job must be the only job of its worker."""
    allowed: frozenset[str] | None = None
    """Workers that satisfy the job's affinity; None: all. For speed, use the same set object for jobs of equal affinity."""

    def fits(self, worker: str) -> bool:
        """Report whether the job's affinity allows a worker."""
        return self.allowed is None or worker in self.allowed


class Reason(StrEnum):
    """Why a job has no worker."""

    NO_WORKERS = "NoWorkers"
    NO_MATCHING_WORKER = "NoMatchingWorker"
    NO_DEDICATED_WORKER = "NoDedicatedWorker"
    CAPACITY = "MaxPerWorkerReached"


@dataclass(slots=True)
class Assignment:
    """The worker of each job, and the jobs without a worker."""

    workers: dict[str, str] = field(default_factory=dict)
    """Job → worker."""
    unassigned: dict[str, Reason] = field(default_factory=dict)

    def shares(self, workers: Iterable[str]) -> dict[str, list[str]]:
        """Return the jobs of each worker, in the order of their assignment."""
        shares: dict[str, list[str]] = {worker: [] for worker in workers}
        for job, worker in self.workers.items():
            shares[worker].append(job)
        return shares


@dataclass(frozen=True, slots=True)
class Problem:
    """Input of a strategy: the shared jobs and the workers to divide them over. Neither list is empty."""

    jobs: Sequence[Job]
    workers: Sequence[str]
    """Workers without dedicated jobs, ordered by index."""
    previous: Mapping[str, str]
    """Job → worker in the previous assignment; may contain deleted jobs and workers."""
    cap: int
    """Largest number of jobs per worker."""


Choose = Callable[[Job, Container[str]], str | None]
"""Returns the worker for a job, among given free workers; None: no free worker satisfies the job's affinity."""
Choice = Callable[[Sequence[str]], Choose]
"""Returns a function that chooses among these workers, which satisfy one affinity. A worker that is not free at one call
must not be free at a later call."""


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


def sticky(problem: Problem) -> Assignment:
    """Divide by number if weights are equal and no job has an affinity, otherwise by weight.

    Two workers differ by at most one job, or by at most 10 % of the mean weight (see ``_by_weight``).
    """
    first = problem.jobs[0]
    if all(job.weight == first.weight and job.allowed is None for job in problem.jobs):
        return _by_count(problem)
    return _by_weight(problem)


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


def _by_weight(problem: Problem) -> Assignment:
    """Divide by weight. Loads differ by ≤ 0.1 × mean if weights are ≤ 0.1 × mean, and affinity and cap allow."""
    division = _Division(problem)
    unplaced = division.place(division.keep())
    # Until nothing moves, so that the next division of the same jobs moves nothing either. This ends, because every
    # round places a job or reduces the sum of the squared loads.
    while division.shed() | division.level():
        unplaced = division.place(unplaced)
    workers = {
        job.name: division.worker_of[job.name] for job in problem.jobs if job.name in division.worker_of
    }
    return Assignment(workers, {job.name: Reason.CAPACITY for job in unplaced})


@dataclass(slots=True)
class _Division:
    problem: Problem
    worker_of: dict[str, str] = field(default_factory=dict)
    held: dict[str, dict[str, Job]] = field(init=False)
    load: dict[str, int] = field(init=False)
    order: list[tuple[int, int]] = field(default_factory=list)
    """(load, index of worker), ascending; kept up to date by ``place``, ``shed`` and ``level``."""
    weights: dict[str, dict[frozenset[str] | None, int]] = field(default_factory=dict)
    """Worker → results of ``_least_weights`` since its jobs changed."""
    mean: float = field(init=False)

    def __post_init__(self) -> None:
        self.held = {worker: {} for worker in self.problem.workers}
        self.load = dict.fromkeys(self.problem.workers, 0)
        self.mean = sum(job.weight for job in self.problem.jobs) / len(self.problem.workers)

    def keep(self) -> list[Job]:
        """Leave jobs with their workers as far as affinity and cap allow; return the other jobs."""
        loose = []
        for job in self.problem.jobs:
            worker = self.problem.previous.get(job.name, "")
            if worker in self.held and job.fits(worker) and len(self.held[worker]) < self.problem.cap:
                self._add(job, worker)
            else:
                loose.append(job)
        return loose

    def shed(self) -> bool:
        """Place the surplus of overloaded workers again; return whether this makes the loads more equal.

        This moves fewer jobs than ``level``, because heavy jobs move first. If the loads do not become more equal, for
        example because affinity allows no other workers, all jobs stay.
        """
        before = self._inequality()
        surplus = {job: worker for worker in self.problem.workers for job in self._surplus(worker)}
        if not surplus:
            return False
        if not self.place(list(surplus)) and self._inequality() < before:
            return True
        for job, worker in surplus.items():
            if job.name in self.worker_of:
                self._remove(job)
            self._add(job, worker)
        self._sort()
        return False

    def _surplus(self, worker: str) -> list[Job]:
        """Remove the heaviest jobs of an overloaded worker without making it underloaded; return the removed jobs."""
        surplus = []
        if self.load[worker] > self.mean * (1 + TOLERANCE):
            for job in sorted(self.held[worker].values(), key=lambda job: (-job.weight, job.name)):
                if self.load[worker] - job.weight >= self.mean * (1 - TOLERANCE / 2):
                    self._remove(job)
                    surplus.append(job)
                if self.load[worker] <= self.mean * (1 + TOLERANCE):
                    break
        return surplus

    def place(self, loose: list[Job]) -> list[Job]:
        """Assign jobs, heaviest first, to the least loaded worker with room; return jobs for which no worker has room."""
        unplaced = []
        self._sort()
        # Jobs that had a worker come first. If the cap leaves no room for all jobs, new ones stay unassigned.
        for job in sorted(loose, key=lambda job: (job.name not in self.problem.previous, -job.weight)):
            found = self._lightest(job.allowed)
            if found is None:
                unplaced.append(job)
                continue
            self.order.remove(found)
            _, index = found
            worker = self.problem.workers[index]
            self._add(job, worker)
            bisect.insort(self.order, (self.load[worker], index))
        return unplaced

    def level(self) -> bool:
        """Move single jobs while two workers differ too much and a move makes the loads more equal; return whether any moved."""
        # The limit bounds the time. The next division continues.
        for moves in range(2 * len(self.problem.jobs)):
            pair = self._unequal_pair()
            if pair is None:
                return moves > 0
            self._move(*pair)
        return False

    def _unequal_pair(self) -> tuple[int, int] | None:
        """Return a heavier and a lighter worker (indexes) between which a job can move; None: the division is even.

        The heavier worker is too heavy for the lightest worker, or the lighter one is too light for the heaviest.
        """
        lightest, heaviest = self.order[0][0], self.order[-1][0]
        tolerated = self.mean * TOLERANCE
        if heaviest - lightest <= tolerated:
            return None
        return self._relieved(lightest + tolerated) or self._filled(heaviest - tolerated)

    def _relieved(self, limit: float) -> tuple[int, int] | None:
        """Return the heaviest worker above the limit with a job that can move, and the lightest worker for this job."""
        targets: dict[frozenset[str] | None, tuple[int, int] | None] = {}
        for heavy, high in reversed(self.order):
            if heavy <= limit:
                break
            lows = []
            for allowed, weight in self._least_weights(high).items():
                if allowed not in targets:
                    targets[allowed] = self._lightest(allowed)
                target = targets[allowed]
                if target is not None and weight < heavy - target[0]:
                    lows.append(target)
            if lows:
                return high, min(lows)[1]
        return None

    def _filled(self, limit: float) -> tuple[int, int] | None:
        """Return the lightest worker below the limit that can get a job, after a heavier worker that has the job."""
        sources: dict[frozenset[str] | None, tuple[int, int]] = {}
        for heavy, high in self.order:
            for allowed, weight in self._least_weights(high).items():
                sources[allowed] = max(sources.get(allowed, (0, 0)), (heavy - weight, high))
        for light, low in self.order:
            if light >= limit:
                break
            highs = [
                source
                for allowed, source in sources.items()
                if source[0] > light and self._has_room(allowed, low)
            ]
            if highs:
                return max(highs)[1], low
        return None

    def _move(self, high: int, low: int) -> None:
        """Move the job that best balances two workers."""
        source, target = self.problem.workers[high], self.problem.workers[low]
        difference = self.load[source] - self.load[target]
        over, under = self.load[source] - self.mean, self.mean - self.load[target]
        ideal = min(over, under) if over > 0 and under > 0 else difference / 2
        candidates = [
            job for job in self.held[source].values() if job.weight < difference and job.fits(target)
        ]
        job = min(candidates, key=lambda job: (abs(job.weight - ideal), job.name))
        self.order.remove((self.load[source], high))
        self.order.remove((self.load[target], low))
        self._remove(job)
        self._add(job, target)
        bisect.insort(self.order, (self.load[source], high))
        bisect.insort(self.order, (self.load[target], low))

    def _inequality(self) -> int:
        """Return the sum of the squared loads, which every move of ``level`` reduces."""
        return sum(load * load for load in self.load.values())

    def _sort(self) -> None:
        self.order = sorted((self.load[worker], index) for index, worker in enumerate(self.problem.workers))

    def _lightest(self, allowed: frozenset[str] | None) -> tuple[int, int] | None:
        """Return load and index of the least loaded worker that has room for a job with this affinity; None: no worker."""
        return next((place for place in self.order if self._has_room(allowed, place[1])), None)

    def _has_room(self, allowed: frozenset[str] | None, index: int) -> bool:
        worker = self.problem.workers[index]
        return (allowed is None or worker in allowed) and len(self.held[worker]) < self.problem.cap

    def _least_weights(self, index: int) -> Mapping[frozenset[str] | None, int]:
        """Return the least weight of a worker's jobs by affinity."""
        worker = self.problem.workers[index]
        if worker not in self.weights:
            weights = self.weights[worker] = {}
            for job in self.held[worker].values():
                weights[job.allowed] = min(job.weight, weights.get(job.allowed, job.weight))
        return self.weights[worker]

    def _add(self, job: Job, worker: str) -> None:
        self.held[worker][job.name] = job
        self.load[worker] += job.weight
        self.worker_of[job.name] = worker
        self.weights.pop(worker, None)

    def _remove(self, job: Job) -> None:
        worker = self.worker_of.pop(job.name)
        del self.held[worker][job.name]
        self.load[worker] -= job.weight
        self.weights.pop(worker, None)


_SHARED: Mapping[str, Callable[[Problem], Assignment]] = {
    STICKY: sticky,
    CONTIGUOUS: contiguous,
    RENDEZVOUS: rendezvous,
}
