"""All runs over a trace: policies, one cluster and several, lower schedulers, seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hack.placement import learning, records, risk
from hack.placement.cluster import Lower
from hack.placement.simulate import Run, simulate
from hack.placement.trace import GPU, arrivals, read_nodes, read_tasks

PUBLISHED = {
    "Random": 86.30,
    "DotProd": 90.62,
    "GpuClustering": 91.65,
    "GpuPacking": 91.78,
    "BestFit": 92.86,
    "FGD-first": 95.23,
}
"""Percent of GPUs allocated when 100 % are requested, as published for one cluster."""
CLUSTERS, FIRST_SEED, RATIO = 20, 42, 1.3
ONE_CLUSTER = [
    "FGD-first",
    "FGD",
    "FGD-learned",
    "BestFit",
    "GpuPacking",
    "GpuClustering",
    "DotProd",
    "LeastAllocated",
    "Random",
]
SEVERAL = [
    "FGD-likely",
    "FGD-likely-learned",
    "FGD",
    "fit",
    "SumOfCapacity",
    "BestFit",
    "GpuPacking",
    "GpuClustering",
    "DotProd",
    "LeastAllocated",
    "Random",
]
LOWER: tuple[Lower, ...] = ("LeastAllocated", "MostAllocated")
_STEP = 5
"""Percent between the kept points of a curve."""


def runs(seeds: int) -> Iterator[Run]:
    """Return all runs over the trace, ordered by seed."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for policy in ONE_CLUSTER:
            yield Run(policy, 1, None, seed)
        for lower in LOWER:
            for policy in SEVERAL:
                yield Run(policy, CLUSTERS, lower, seed)


def run_trace(
    tasks: Path,
    nodes: Path,
    out: Path,
    *,
    seeds: int,
    clusters: int | None,
    policies: Sequence[str],
    workers: int,
) -> None:
    """Run the simulations that a file of results lacks, and add their results.

    Args:
        tasks: task list of the trace.
        nodes: node list of the trace.
        out: file of results.
        seeds: number of seeds.
        clusters: number of clusters; None: a single one, and several.
        policies: names of policies; none: all.
        workers: number of processes.
    """
    done = {(one["policy"], one["clusters"], one["lower"], one["seed"]) for one in records.read(out)}
    missing = [
        (run, tasks, nodes)
        for run in runs(seeds)
        if (run.policy, run.clusters, run.lower, run.seed) not in done
        and (not policies or run.policy in policies)
        and clusters in (None, run.clusters)
    ]
    _all(_trace, missing, out, workers)


def run_risk(out: Path, *, seeds: int, workers: int) -> None:
    """Run the simulations that a file of results lacks, and add their results."""
    done = {(one["agent"], one["load"], one["seed"]) for one in records.read(out)}
    found = risk.runs(range(FIRST_SEED, FIRST_SEED + seeds))
    _all(risk.run, [run for run in found if run not in done], out, workers)


def run_learning(out: Path, *, seeds: int, workers: int) -> None:
    """Run the simulations that a file of results lacks, and add their results."""
    done = {(one["scenario"], one["seed"]) for one in records.read(out)}
    found = [(name, seed) for name in learning.SCENARIOS for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
    _all(learning.run, [run for run in found if run not in done], out, workers)


def _all(
    function: Callable[..., dict[str, Any]], arguments: Sequence[Sequence[Any]], out: Path, workers: int
) -> None:
    with ProcessPoolExecutor(workers, initializer=os.nice, initargs=(19,)) as pool:
        for future in as_completed([pool.submit(function, *argument) for argument in arguments]):
            record = future.result()
            records.add(out, record)
            print(*(value for value in record.values() if isinstance(value, str | int | float)), flush=True)
    records.tidy(out)


def _trace(run: Run, tasks: Path, nodes: Path) -> dict[str, Any]:
    machines, listed = read_nodes(nodes), read_tasks(tasks)
    capacity = sum(int(node["status"]["allocatable"].get(GPU, 0)) for node in machines)
    curve = simulate(run, machines, listed, arrivals(listed, capacity, RATIO, run.seed))
    return {**asdict(run), "at100": curve[100], "curve": curve[::_STEP]}
