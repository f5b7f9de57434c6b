"""Table and plots of ``bench_mirroring``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from hack.plots.lines import Axis, LineChart, Point
from tests.benchmarks.records import Record
from tests.benchmarks.tables import spread
from tests.benchmarks.tables import table as markdown

_PODS, _SECONDS = Axis("pods", is_logarithmic=True), Axis("seconds since the Deployment was created")


def table(record: Record) -> str:
    """Return the medians and ranges of all runs."""
    heads = ["variant", "pods", "seconds to all started", "pods/s", "p50, s", "p99, s", "deletes/s", "CPU ms per pod"]  # fmt: skip
    rows = [
        [
            variant,
            f"{pods:,}",
            spread([run["seconds"] for run in runs]),
            spread([pods / run["seconds"] for run in runs]),
            spread([run["p50"] for run in runs], 2),
            spread([run["p99"] for run in runs], 2),
            spread([pods / run["deleteSeconds"] for run in runs]),
            spread([run["cpuSeconds"] / pods * 1000 for run in runs if "cpuSeconds" in run]),
        ]
        for (variant, pods), runs in _grouped(record).items()
    ]
    return markdown(heads, rows)


def charts(record: Record) -> Mapping[str, LineChart]:
    """Return the plots by name."""
    most = max(run["pods"] for run in record["figures"]["runs"])
    over_time = record["figures"]["overTime"]

    def by_pods(title: str, axis: Axis, value: Callable[[Record], float]) -> LineChart:
        return LineChart(title, _PODS, axis, _series(record, value))

    def by_time(what: str, axis: Axis, value: Callable[[Sequence[float]], float]) -> LineChart:
        title = f"{what} of the virtual node's process: {most:,} pods start, then are deleted"
        series = {name: [(row[0], value(row)) for row in rows] for name, rows in sorted(over_time.items())}
        return LineChart(title, _SECONDS, axis, series, mark_points=False)

    seconds = Axis("seconds", is_logarithmic=True)
    throughput = "Throughput: pods of one Deployment until all have started"
    return {
        "throughput": by_pods(throughput, Axis("pods/s"), lambda run: run["pods"] / run["seconds"]),
        "p50": by_pods("Median time from creation to Running", seconds, lambda run: run["p50"]),
        "p99": by_pods(
            "99th percentile of the time from creation to Running", seconds, lambda run: run["p99"]
        ),
        "cpu": by_time("CPU", Axis("% of one core"), lambda row: 100 * row[1]),
        "memory": by_time("Memory", Axis("MiB"), lambda row: row[2]),
    }


def _grouped(record: Record) -> dict[tuple[str, int], list[Record]]:
    """Return the runs by variant and number of pods, in the order of both."""
    found: dict[tuple[str, int], list[Record]] = {}
    for run in sorted(record["figures"]["runs"], key=lambda run: (run["variant"], run["pods"])):
        found.setdefault((run["variant"], run["pods"]), []).append(run)
    return found


def _series(record: Record, value: Callable[[Record], float]) -> dict[str, list[Point]]:
    """Return the medians of a value over the number of pods, by variant."""
    series: dict[str, list[Point]] = {}
    for (variant, pods), runs in _grouped(record).items():
        series.setdefault(variant, []).append((pods, statistics.median(value(run) for run in runs)))
    return series
