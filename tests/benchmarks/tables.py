"""Tables and plots of the benchmarks' page."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from controller_runtime.apimachinery import readable
from hack.plots.lines import Axis, LineChart, Point
from tests.benchmarks.records import Record

_MANY = 1000
"""Pods of a round from which the table of ``mirroring`` shows it."""
_PODS, _SECONDS = Axis("pods", is_logarithmic=True), Axis("seconds since the Deployment was created")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, with the least and greatest value of several: ``2 (1–3)``."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def mirroring(record: Record) -> str:
    """Return the medians and ranges of ``bench_mirroring`` for many pods; the plots have all numbers of pods."""
    heads = ["variant", "pods", "pods/s", "p50, s", "p99, s", "deletes/s", "CPU ms per pod"]
    rows = [
        [
            variant,
            f"{pods:,}",
            spread([pods / run["seconds"] for run in runs]),
            spread([run["p50"] for run in runs], 2),
            spread([run["p99"] for run in runs], 2),
            spread([pods / run["deleteSeconds"] for run in runs]),
            spread([run["cpuSeconds"] / pods * 1000 for run in runs if "cpuSeconds" in run]),
        ]
        for (variant, pods), runs in _grouped(record).items()
        if pods >= _MANY
    ]
    return table(heads, rows)


def mirroring_charts(record: Record) -> Mapping[str, LineChart]:
    """Return the plots of ``bench_mirroring`` by name."""
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


def jobs(record: Record) -> str:
    """Return the medians and ranges of ``bench_jobs``."""
    figures = ("admitted", "admittedP50", "admittedP99", "running", "runningP50", "runningP99")
    variants: dict[str, list[Record]] = {}
    for row in record["figures"]["rounds"]:
        variants.setdefault(row["variant"], []).append(row)
    heads = ["", "admitted/s", "p50, s", "p99, s", "Running/s", "p50, s", "p99, s"]
    rows = [
        [variant, *(spread([row[name] for row in found if name in row]) for name in figures)]
        for variant, found in variants.items()
    ]
    return table(heads, rows)


def service_levels(record: Record) -> str:
    """Return for both variants the largest load that kept the levels, and the smallest that did not."""
    heads = ["", "pods/s", "API p99, s", "429 and 5xx per s", "converged", ""]
    tries: dict[str, list[Record]] = {}
    for row in record["figures"]["tries"]:
        tries.setdefault(row["variant"], []).append(row)
    rows = []
    for variant, found in tries.items():
        kept = max((row for row in found if row["isKept"]), key=lambda row: row["rate"], default=None)
        broken = min((row for row in found if not row["isKept"]), key=lambda row: row["rate"], default=None)
        rows += [
            [
                variant,
                f"{row['rate']:g}",
                f"≤ {row['apiP99']:g}",
                f"{row['errors']:.2f}",
                f"{row['convergence']:.1%}",
                "kept" if row["isKept"] else "**not kept**",
            ]
            for row in (kept, broken)
            if row is not None
        ]
    return table(heads, rows)


def soak(record: Record) -> str:
    """Return what happened in a soak, and its conditions."""
    figures = record["figures"]
    text = (
        f"{figures['created']:,} pods and {len(figures['faults'])} faults in {figures['minutes']:g} minutes. "
        "Memory is that of the process that is not killed."
    )
    return f"{text}\n\n{targets(record)}"


def many_pods(record: Record) -> str:
    """Return the memory of ``bench_many_pods``, and its targets."""
    found = record["figures"]
    text = (
        f"With {found['pods']:,} pods the process needs {found['fullMiB']:.0f} MiB ({found['emptyMiB']:.0f} MiB without "
        f"pods, at most {found['peakMiB']:.0f} MiB), and {found['idleCpu']:.1%} of a core when idle. The restart took "
        f"{found['adoptCpuSeconds']:.1f} s of CPU."
    )
    return f"{text}\n\n{targets(record)}"


def many_clusters(record: Record) -> str:
    """Return the figures of ``bench_many_clusters``."""
    found = record["figures"]
    columns = {
        "lower clusters": f"{found['clusters']}",
        "virtual nodes": f"{found['virtualNodes']}",
        "all Ready after, s": f"{found['readySeconds']:.1f}",
        "MiB": f"{found['rssMiB']:.0f}",
        "CPU when idle": f"{found['idleCpu']:.1%}",
        "a pod on each Running, s": f"{found['podsSeconds']:.1f}",
    }
    return table(list(columns), [list(columns.values())])


def shards(record: Record) -> str:
    """Return a row for each run of ``bench_shards``, and the targets. Several replicas: the sum of CPU time and memory."""
    heads = ["lower clusters", "pods", "replicas", "CPU ms per pod", "pods/s", "MiB", "MiB without pods", "CPU when idle"]  # fmt: skip
    rows = [
        [
            f"{run['clusters']:,}",
            f"{run['pods']:,}",
            f"{run['replicas']}",
            f"{_cpu_ms(run):.1f}",
            f"{run['podsPerSecond']:,.0f}",
            f"{sum(run['fullMiB']):,.0f}",
            f"{sum(run['emptyMiB']):,.0f}",
            f"{sum(run['idleCpu']):.1%}",
        ]
        for run in sorted(record["figures"]["runs"], key=_sizes)
    ]
    return f"{table(heads, rows)}\n\n{targets(record)}"


def shards_charts(record: Record) -> Mapping[str, LineChart]:
    """Return the plots of ``bench_shards``: what one replica costs over the number of clusters and of pods."""
    runs = sorted((run for run in record["figures"]["runs"] if run["replicas"] == 1), key=_sizes)
    usual = record["figures"]["runs"][0]
    charts: dict[str, LineChart] = {}
    for size, other in (("clusters", "pods"), ("pods", "clusters")):
        same = [run for run in runs if run[other] == usual[other]]
        where = f"with {usual[other]:,} {'pods' if other == 'pods' else 'lower clusters'}"
        axis = Axis("lower clusters" if size == "clusters" else "pods", is_logarithmic=True)
        memory = {"MiB": [(run[size], sum(run["fullMiB"])) for run in same]}
        cpu = {"CPU ms per pod": [(run[size], _cpu_ms(run)) for run in same]}
        charts |= {
            f"{size}-memory": LineChart(f"Memory of one replica {where}", axis, Axis("MiB"), memory),
            f"{size}-cpu": LineChart(f"CPU time of one replica {where}", axis, Axis("ms per pod"), cpu),
        }
    return charts


def _sizes(run: Record) -> tuple[int, int, int]:
    return run["replicas"], run["clusters"], run["pods"]


def _cpu_ms(run: Record) -> float:
    return 1000 * float(sum(run["cpuSeconds"])) / float(run["pods"])


def replay(record: Record) -> str:
    """Return a row for each number of pods, and the targets."""
    figures = record["figures"]
    heads = ["pods", "MiB", "KiB per pod", "start, s", "start, CPU s", "events/s", "CPU ms per event"]
    rows = [
        [
            f"{row['pods']:,}",
            f"{row['rssMiB']:,.0f}",
            f"{row['kibPerPod']:.1f}" if "kibPerPod" in row else "–",
            f"{row['startSeconds']:.1f}",
            f"{row['startCpu']:.1f}",
            f"{row['events'] / row['eventSeconds']:,.0f}" if row["events"] else "–",
            f"{1000 * row['eventCpu'] / row['events']:.2f}" if row["events"] else "–",
        ]
        for row in figures["rows"]
    ]
    return f"{table(heads, rows)}\n\n{targets(record)}"


def inspect(record: Record) -> str:
    """Return the size of the clusters that were inspected, and the targets."""
    found = record["figures"]
    text = (
        f"{found['lowerNodes']:,} lower nodes and {found['pods']:,} pods: {found['cpuSeconds']:.1f} s of CPU, "
        f"{readable.count(found['findings'], 'finding')}."
    )
    return f"{text}\n\n{targets(record)}"


_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[")
_ROUND = re.compile(
    r"(?P<variant>\w+ \w+) +(?P<rate>[\d.]+) pods/s to Running +p50 +(?P<p50>[\d.]+) s +p99 +(?P<p99>[\d.]+) s"
    r" +(?P<deletes>[\d.]+) deletes/s"
)
_REQUESTS = "all "


def load(record: Record) -> str:
    """Return the rounds of ``bench_load``, and the requests per pod."""
    phases = ["bound directly", "20 pods/s"]
    rounds: dict[tuple[str, str], list[re.Match[str]]] = {}
    requests: list[list[str]] = []
    for line in record["figures"]["lines"]:
        phase = phases[min(len(requests), 1)]
        if found := _ROUND.match(line):
            rounds.setdefault((phase, found["variant"]), []).append(found)
        elif line.startswith(_REQUESTS):
            requests.append([phase, *line.split()[1:]])
    figures = [
        [
            phase,
            variant,
            *(spread([float(one[name]) for one in found], 2) for name in ("rate", "p50", "p99", "deletes")),
        ]
        for (phase, variant), found in rounds.items()
    ]
    clusters = [
        "kwok node",
        "upper, pod tokens",
        "lower, pod tokens",
        "upper, node tokens",
        "lower, node tokens",
    ]
    return "\n\n".join(
        [
            table(["load", "variant", "pods/s", "p50, s", "p99, s", "deletes/s"], figures),
            table(["requests per pod", *clusters], requests),
        ]
    )


def printed(record: Record) -> str:
    """Return the lines that a program printed, except its log."""
    figures = record["figures"]
    lines = [line for line in figures["lines"] if not _LOG_LINE.match(line)]
    return "\n".join([f"`{figures['command']}`", "", "```text", *lines, "```"])


def condition(what: str, wanted: str, measured: str, *, is_met: bool) -> dict[str, Any]:
    """Return a row of ``targets``."""
    return {"what": what, "wanted": wanted, "measured": measured, "isMet": is_met}


def target(what: str, measured: float, most: float, unit: str) -> dict[str, Any]:
    """Return a row of ``targets`` for a figure that must be at most ``most``."""
    wanted, found = f"≤ {most:g} {unit}".strip(), f"{measured:,.4g} {unit}".strip()
    return condition(what, wanted, found, is_met=measured <= most)


def targets(record: Record) -> str:
    """Return the figures of a benchmark with targets: what, wanted, measured, met or missed."""
    rows = [
        [row["what"], row["wanted"], row["measured"], "met" if row["isMet"] else "**missed**"]
        for row in record["figures"]["targets"]
    ]
    return table(["", "wanted", "measured", ""], rows)
