"""The benchmarks that ``python -m tests.benchmarks`` runs, in the order of ``docs/evidence/benchmarks.md``."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

Figures = Mapping[str, Any]


class Measure(Protocol):
    """Runs a benchmark and returns its figures."""

    def __call__(self, *, quick: bool, seed: int) -> Coroutine[Any, Any, Figures]: ...


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark of the suite."""

    name: str
    minutes: int
    """Duration of a complete run on an idle machine with two cores."""
    load: Callable[[], Measure]
    """Returns the function that runs it. Not imported earlier, because ``render`` needs no clusters."""


def _program(name: str, minutes: int, module: str) -> Benchmark:
    def load() -> Measure:
        found: Measure = importlib.import_module(f"tests.benchmarks.{module}").measure
        return found

    return Benchmark(name, minutes, load)


def _printed(name: str, minutes: int, *arguments: str, quick: Sequence[str] = ()) -> Benchmark:
    """Return a benchmark with figures that are the lines that a program prints."""
    return Benchmark(name, minutes, lambda: partial(_run, name, arguments, quick))


async def _run(
    name: str, arguments: Sequence[str], quick_arguments: Sequence[str], *, quick: bool, seed: int
) -> Figures:
    module = f"tests.benchmarks.bench_{name.replace('-', '_')}"
    argv = ["-m", module, *(quick_arguments if quick else arguments)]
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    lines = []
    async for raw in process.stdout:
        print(line := raw.decode().rstrip(), flush=True)
        if not line.startswith("# "):
            lines.append(line)
    return {"command": f"python {' '.join(argv)}", "exitCode": await process.wait(), "lines": lines}


BENCHMARKS = (
    _program("mirroring", 30, "bench_mirroring"),
    _program("jobs", 10, "bench_jobs"),
    _program("service-levels", 30, "bench_service_levels"),
    _program("soak", 65, "bench_soak"),
    _program("many-pods", 15, "bench_many_pods"),
    _program("many-clusters", 3, "bench_many_clusters"),
    _program("shards", 20, "bench_shards"),
    _program("replay", 1, "bench_replay"),
    _program("inspect", 1, "bench_inspect"),
    _program("exact", 15, "bench_exact"),
    _printed(
        "load",
        20,
        "--rounds=3",
        "--churn=600",
        "--requests",
        quick=("--pods=100", "--churn=50", "--requests"),
    ),
    _printed("noisy-neighbour", 15, quick=("--pods=20", "--over-quota=100", "--connections=50")),
    _printed("multi-scheduler", 2, quick=("fit",)),
    _printed("webhook", 1),
    _printed("splice", 1),
    _printed("outage", 3, quick=("--objects=100", "--seconds=5")),
    _printed("swarm", 1),
    _printed("swarm-cluster", 3, quick=("--workers=5", "--jobs=20", "--rounds=2")),
)
