"""The strategies against reference vectors, and invariants over random histories."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import assignment
from swarm.assignment import CONTIGUOUS, RENDEZVOUS, STICKY, Assignment, Job, Reason, assign, slices
from tests.benchmarks.bench_swarm import lower_bound, moved
from tests.thorough import seeds, size


# Behavioural specification of k8s-swarm, section 1, with the corrected slices.
@pytest.mark.parametrize(
    ("jobs", "workers", "expected"),
    [
        (27, 1, [(0, 27)]),
        (27, 2, [(0, 14), (14, 27)]),
        (27, 3, [(0, 9), (9, 18), (18, 27)]),
        (27, 4, [(0, 7), (7, 14), (14, 21), (21, 27)]),
        (27, 12, [(0, 3), (3, 6), (6, 9), *((start, start + 2) for start in range(9, 27, 2))]),
        (9, 2, [(0, 5), (5, 9)]),
        (15, 3, [(0, 5), (5, 10), (10, 15)]),
        (3, 5, [(0, 1), (1, 2), (2, 3), (3, 3), (3, 3)]),
        (0, 3, [(0, 0), (0, 0), (0, 0)]),
        (10, 4, [(0, 3), (3, 6), (6, 8), (8, 10)]),
        (7, 3, [(0, 3), (3, 5), (5, 7)]),
        (7, 0, []),
    ],
)
def test_contiguous_slices_equal_the_vectors(jobs, workers, expected):
    """The corrected slices of the specification."""
    assert list(slices(jobs, workers)) == expected
    names = [f"job-{index}" for index in range(jobs)]
    result = assign([Job(name) for name in names], _workers(workers), strategy=CONTIGUOUS)
    if workers:
        shares = result.shares(_workers(workers))
        assert [shares[worker] for worker in _workers(workers)] == [
            names[start:end] for start, end in expected
        ]


@pytest.mark.parametrize(
    ("jobs", "before", "after", "moves"),
    [
        (27, 3, 4, 6),
        (27, 3, 2, 9),
        (100, 10, 11, 9),
        (1000, 10, 11, 90),
        (1000, 50, 49, 20),
        (10_000, 100, 101, 99),
    ],
)
def test_sticky_moves_as_few_jobs_as_possible(jobs, before, after, moves):
    """The number of moves equals the lower bound, within one job of even."""
    listed = [Job(f"job-{index}") for index in range(jobs)]
    first = assign(listed, _workers(before))
    second = assign(listed, _workers(after), previous=first.workers)
    assert moved(first, second) == lower_bound(jobs, before, after) == moves
    _balanced(second, _workers(after))


def test_worker_replaced_under_its_name_moves_nothing():
    """Equal workers give equal assignments."""
    jobs = [Job(f"job-{index}", weight=1 + index % 5) for index in range(50)]
    first = assign(jobs, _workers(7))
    for strategy in (STICKY, CONTIGUOUS, RENDEZVOUS):
        once = assign(jobs, _workers(7), previous=first.workers, strategy=strategy)
        assert assign(jobs, _workers(7), previous=once.workers, strategy=strategy).workers == once.workers
    assert assign(jobs, _workers(7), previous=first.workers).workers == first.workers


def test_rendezvous_moves_jobs_only_to_the_new_worker():
    """Other workers exchange no jobs."""
    jobs = [Job(f"job-{index}") for index in range(500)]
    first = assign(jobs, _workers(9), strategy=RENDEZVOUS)
    second = assign(jobs, _workers(10), strategy=RENDEZVOUS)
    gone = {job for job in first.workers if first.workers[job] != second.workers[job]}
    assert {second.workers[job] for job in gone} == {"w-9"}
    assert 20 < len(gone) < 100


@pytest.mark.parametrize("strategy", [STICKY, CONTIGUOUS, RENDEZVOUS])
def test_reasons_of_unassigned_jobs(strategy):
    """Each unassigned job has the matching reason."""
    jobs = [
        Job("alone-0", dedicated=True),
        Job("alone-1", dedicated=True),
        Job("nowhere", allowed=frozenset({"w-9"})),
        *(Job(f"job-{index}") for index in range(5)),
    ]
    assert set(assign(jobs, [], strategy=strategy).unassigned.values()) == {Reason.NO_WORKERS}
    result = assign(jobs, _workers(2), strategy=strategy, max_per_worker=4)
    assert result.unassigned.pop("alone-1") == Reason.NO_DEDICATED_WORKER
    assert result.unassigned.pop("nowhere") == Reason.NO_MATCHING_WORKER
    assert result.unassigned == {"job-4": Reason.CAPACITY}


def test_dedicated_jobs_take_the_lowest_indexes_in_list_order():
    """The rule of the specification's section 11."""
    jobs = [Job("a"), Job("x", dedicated=True), Job("b"), Job("y", dedicated=True)]
    result = assign(jobs, _workers(4), strategy=CONTIGUOUS)
    assert result.workers == {"x": "w-0", "y": "w-1", "a": "w-2", "b": "w-3"}


_JOBS = st.lists(
    st.tuples(st.integers(0, 39), st.booleans(), st.sampled_from([0, 0, 0, 1, 2])),
    max_size=40,
    unique_by=lambda job: job[0],
)


@st.composite
def _histories(draw):
    """Successive job lists (name, dedicated, affinity) and sets of workers."""
    workers = st.sets(st.integers(0, 11), max_size=12).map(sorted)
    return draw(st.lists(st.tuples(_JOBS, workers), min_size=1, max_size=6))


@settings(max_examples=60, deadline=None)
@given(
    _histories(),
    st.sampled_from([STICKY, CONTIGUOUS, RENDEZVOUS]),
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([1, 1, 9]),
    st.booleans(),
)
def test_invariants_over_random_histories(history, strategy, cap, spread, plain):
    """I1 to I4 and I6 to I8 hold for each step of a history."""
    previous: Mapping[str, str] = {}
    for listed, indexes in history:
        workers = [f"w-{index}" for index in indexes]
        odd = frozenset(worker for worker in workers if int(worker[2:]) % 2)
        affinities = {0: None, 1: odd, 2: frozenset(workers) - odd}
        jobs = [
            Job(f"job-{number}", 1 + number % spread)
            if plain
            else Job(f"job-{number}", 1 + number % spread, dedicated, affinities[kind])
            for number, dedicated, kind in listed
        ]
        result = assign(jobs, workers, previous=previous, strategy=strategy, max_per_worker=cap)
        _once(jobs, workers, result, cap)
        _dedicated_alone(jobs, result)
        if plain and workers:
            _even_and_few_moves(jobs, workers, previous, result, strategy=strategy, cap=cap)
        again = assign(jobs, workers, previous=result.workers, strategy=strategy, max_per_worker=cap)
        assert again.workers == result.workers, "I4: a move without a cause"
        same = assign(jobs, workers, previous=previous, strategy=strategy, max_per_worker=cap)
        assert list(same.workers.items()) == list(result.workers.items()), "I8"
        previous = result.workers


@settings(max_examples=size(15, 60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.integers(0, 150), st.one_of(st.integers(1, 4), st.integers(1, 1000)), min_size=2
            ),
            st.integers(1, 9),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_weighted_loads_differ_by_a_tenth_of_the_mean_or_one_job(history):
    """I3 for jobs of different weights, in each step of a history; a second division moves nothing."""
    previous: Mapping[str, str] = {}
    for weights, count in history:
        jobs = [Job(f"job-{number}", weight) for number, weight in weights.items()]
        result = assign(jobs, _workers(count), previous=previous)
        _even_loads(jobs, _workers(count), result.workers)
        previous = result.workers
        assert assign(jobs, _workers(count), previous=previous).workers == previous


def test_random_weighted_divisions_are_even_and_move_few_jobs():
    """Workers and jobs come and go, and weights change. The moved weight is near the least possible one."""
    rng = random.Random(1)
    total = least = divisions = 0.0
    histories = size(40, 100)
    for _ in range(histories):
        top, count = rng.choice([2, 3, 5, 10, 50]), rng.randrange(2, 9)
        weights = {number: rng.randint(1, top) for number in range(rng.randrange(40, 200))}
        previous: Mapping[str, str] = {}
        for _ in range(6):
            jobs = [Job(f"job-{number}", weight) for number, weight in weights.items()]
            workers = _workers(count)
            result = assign(jobs, workers, previous=previous)
            _even_loads(jobs, workers, result.workers)
            if previous and top <= sum(weights.values()) / count / 10:
                divisions += 1
                total += sum(
                    job.weight
                    for job in jobs
                    if previous.get(job.name) not in {None, result.workers[job.name]}
                )
                least += _least_moved_weight(jobs, workers, previous)
            previous = result.workers
            count = min(9, max(2, count + rng.choice([-1, 0, 1])))
            for number in rng.sample(sorted(weights), 5):
                weights[number] = rng.randint(1, top)
            for number in rng.sample(sorted(weights), 3):
                del weights[number]
            weights |= {rng.randrange(200, 10**6): rng.randint(1, top) for _ in range(3)}
    assert divisions > 2 * histories
    assert total <= 1.04 * least


def test_second_division_of_the_same_jobs_moves_nothing():
    """Also if affinity and cap prevent an even division, and from any previous division."""
    for seed in seeds(60, 400):
        _check_second_division(seed)


def _check_second_division(seed: int) -> None:
    rng = random.Random(seed)
    workers = _workers(rng.randrange(2, 12))
    groups = [None, *(frozenset(rng.sample(workers, rng.randrange(1, len(workers)))) for _ in range(3))]
    top, cap = rng.choice([2, 5, 50, 1000]), rng.choice([0, 0, 3, 20])
    jobs = [
        Job(f"job-{number}", rng.randint(1, top), allowed=rng.choice(groups))
        for number in range(rng.randrange(2, 150))
    ]
    first = assign(
        jobs, workers, previous={job.name: rng.choice(workers) for job in jobs}, max_per_worker=cap
    )
    second = assign(jobs, workers, previous=first.workers, max_per_worker=cap)
    assert second.workers == first.workers
    assert list(second.unassigned) == list(first.unassigned)


def test_jobs_without_room_are_listed_in_a_fixed_order():
    """Otherwise the status of a Swarm would differ between two controllers."""
    jobs = [Job(f"job-{number}", 1 + number % 3) for number in range(9)]
    left = assign(jobs, _workers(2), max_per_worker=2).unassigned
    assert list(left) == ["job-4", "job-7", "job-0", "job-3", "job-6"]


def test_order_of_the_list_does_not_move_jobs():
    """A reordered list contains the same jobs."""
    jobs = [Job(f"job-{index}") for index in range(30)]
    first = assign(jobs, _workers(4))
    shuffled = random.Random(1).sample(jobs, len(jobs))
    assert assign(shuffled, _workers(4), previous=first.workers).workers == first.workers


def _workers(count: int) -> list[str]:
    return [f"w-{index}" for index in range(count)]


def _once(jobs: Sequence[Job], workers: Sequence[str], result: Assignment, cap: int) -> None:
    """I1: every job has one allowed worker, or a reason."""
    assert result.workers.keys() | result.unassigned.keys() == {job.name for job in jobs}
    assert result.workers.keys().isdisjoint(result.unassigned)
    assert set(result.workers.values()) <= set(workers)
    for job in jobs:
        if job.name in result.workers:
            assert job.fits(result.workers[job.name])
    if cap:
        assert max(Counter(result.workers.values()).values(), default=0) <= cap


def _dedicated_alone(jobs: Sequence[Job], result: Assignment) -> None:
    """I6."""
    counts = Counter(result.workers.values())
    for job in jobs:
        if job.dedicated and job.name in result.workers:
            assert counts[result.workers[job.name]] == 1


def _even_and_few_moves(
    jobs: Sequence[Job],
    workers: Sequence[str],
    previous: Mapping[str, str],
    result: Assignment,
    *,
    strategy: str,
    cap: int,
) -> None:
    """I2, I3 and I7 for jobs without affinity."""
    if strategy == RENDEZVOUS or len({job.weight for job in jobs}) > 1:
        return
    _balanced(result, workers)
    assert len(result.workers) == min(len(jobs), (cap or len(jobs)) * len(workers))
    if strategy == STICKY:
        kept = sum(previous.get(job) == worker for job, worker in result.workers.items())
        assert kept == _most_kept(jobs, workers, previous, len(result.workers))


def _most_kept(jobs: Sequence[Job], workers: Sequence[str], previous: Mapping[str, str], total: int) -> int:
    """Return how many jobs can stay, by trying every choice of workers with one more job."""
    held = Counter(previous.get(job.name) for job in jobs)
    size, rest = divmod(total, len(workers))
    return max(
        sum(min(held[worker], size + (worker in larger)) for worker in workers)
        for larger in itertools.combinations(workers, rest)
    )


def _balanced(result: Assignment, workers: Sequence[str]) -> None:
    counts = Counter(result.workers.values())
    loads = [counts[worker] for worker in workers]
    assert max(loads) - min(loads) <= 1


def _even_loads(jobs: Sequence[Job], workers: Sequence[str], chosen: Mapping[str, str]) -> None:
    """Check the documented bound."""
    loads = dict.fromkeys(workers, 0)
    for job in jobs:
        loads[chosen[job.name]] += job.weight
    tenth = sum(loads.values()) / len(workers) / 10
    heaviest = max(job.weight for job in jobs)
    assert max(loads.values()) - min(loads.values()) <= max(tenth, heaviest) * (1 + 1e-9)


def _least_moved_weight(jobs: Sequence[Job], workers: Sequence[str], previous: Mapping[str, str]) -> float:
    """Return a lower bound of the weight that must move, so that loads differ by at most a tenth of the mean."""
    kept = dict.fromkeys(workers, 0)
    lost = new = 0
    for job in jobs:
        worker = previous.get(job.name)
        if worker is None:
            new += job.weight
        elif worker in kept:
            kept[worker] += job.weight
        else:
            lost += job.weight
    mean = sum(job.weight for job in jobs) / len(workers)
    moves = []
    for step in range(21):
        # All loads are then in a band of a tenth of the mean, which contains the mean.
        low = mean * (1 - step / 200)
        leave = sum(max(0.0, load - low - mean / 10) for load in kept.values())
        arrive = sum(max(0.0, low - load) for load in kept.values())
        moves.append(max(leave, arrive - lost - new))
    return lost + max(0.0, min(moves))


@pytest.mark.parametrize("strategy", [STICKY, CONTIGUOUS])
@pytest.mark.parametrize("allowed", [None, frozenset({"nowhere"})])
def test_many_dedicated_jobs_and_workers_take_no_longer_than_both(
    strategy: str, allowed: frozenset[str] | None
):
    """Users choose both numbers; a comparison of each with each would take half a minute."""
    jobs = [Job(f"j{number}", dedicated=True, allowed=allowed) for number in range(10_000)]
    workers = [f"w{number}" for number in range(2_000)]
    started = time.thread_time()
    found = assign(jobs, workers, strategy=strategy)
    assert time.thread_time() - started < 2
    assert len(found.workers) == (2_000 if allowed is None else 0)


def test_too_many_hashes_are_refused():
    assignment.check_size(20_000, 250)
    with pytest.raises(ValueError, match=r"spec.strategy: .* Use Sticky, or divide the Swarm"):
        assignment.check_size(20_000, 251)
