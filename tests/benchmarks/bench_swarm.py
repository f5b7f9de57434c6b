"""Jobs moved when the number of workers changes, compared with the lower bound and the rule of k8s-swarm; time to assign.

``python -m tests.benchmarks.bench_swarm``.
"""

from __future__ import annotations

import time
from collections import Counter

from swarm.assignment import CONTIGUOUS, RENDEZVOUS, STICKY, Assignment, Job, assign

CHANGES = ((27, 3, 4), (100, 10, 11), (1000, 10, 11), (1000, 50, 49), (10_000, 100, 101))


def lower_bound(jobs: int, before: int, after: int) -> int:
    """Return the fewest moves between two divisions within one job."""
    was, now = (_sizes(jobs, count) for count in (before, after))
    return sum(max(0, old - (now[index] if index < after else 0)) for index, old in enumerate(was))


def moved(before: Assignment, after: Assignment) -> int:
    """Return how many jobs have another worker than before."""
    return sum(after.workers.get(job) != worker for job, worker in before.workers.items())


def main() -> None:
    print("jobs   workers    bound  Sticky  max-min  k8s-swarm  Rendezvous")
    for jobs, before, after in CHANGES:
        listed = [Job(f"stream:{index}") for index in range(jobs)]
        figures = {}
        for strategy in (STICKY, CONTIGUOUS, RENDEZVOUS):
            first = assign(listed, _workers(before), strategy=strategy)
            second = assign(listed, _workers(after), strategy=strategy, previous=first.workers)
            figures[strategy] = (first, second)
        counts = Counter(figures[STICKY][1].workers.values())
        spread = max(counts.values()) - min(counts.values())
        moves = {strategy: moved(*pair) for strategy, pair in figures.items()}
        print(
            f"{jobs:<6} {before:>3} → {after:<4} {lower_bound(jobs, before, after):>6} {moves[STICKY]:>7}"
            f" {spread:>8} {moves[CONTIGUOUS]:>10} {moves[RENDEZVOUS]:>11}"
        )
    listed = [Job(f"stream:{index}") for index in range(10_000)]
    for strategy in (STICKY, CONTIGUOUS, RENDEZVOUS):
        start = time.perf_counter()
        assign(listed, _workers(1000), strategy=strategy)
        print(f"10,000 jobs over 1,000 workers, {strategy}: {time.perf_counter() - start:.2f} s")


def _sizes(jobs: int, workers: int) -> list[int]:
    size, rest = divmod(jobs, workers)
    return [size + (index < rest) for index in range(workers)]


def _workers(count: int) -> list[str]:
    return [f"swarm-worker-{index}" for index in range(count)]


if __name__ == "__main__":
    main()
