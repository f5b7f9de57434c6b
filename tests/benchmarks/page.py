"""Writes ``docs/evidence/benchmarks.md`` and its plots from the raw results. A unit test checks that they are current."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hack.plots import bars, lines
from hack.plots.page import put
from hack.plots.svg import THEMES, Theme
from tests.benchmarks import records, tables
from tests.benchmarks.exact import tables as exact_tables
from tests.benchmarks.records import Record
from tests.benchmarks.suite import BENCHMARKS

DOCS = Path("docs/evidence")
PAGE = DOCS / "benchmarks.md"
_BUSY = 0.5
"""Cores in use before a run above which the page warns of its figures."""
_TABLES: Mapping[str, Callable[[Record], str]] = {
    "mirroring": tables.mirroring,
    "jobs": tables.jobs,
    "service-levels": tables.service_levels,
    "soak": tables.soak,
    "many-pods": tables.many_pods,
    "many-clusters": tables.many_clusters,
    "shards": tables.shards,
    "replay": tables.replay,
    "inspect": tables.inspect,
    "exact": exact_tables.exact,
    "load": tables.load,
}
"""Benchmarks with tables of their own; for others the page shows the printed lines."""
_Chart = bars.Chart | lines.LineChart
_CHARTS: Mapping[str, Callable[[Record], Mapping[str, _Chart]]] = {
    "mirroring": tables.mirroring_charts,
    "shards": tables.shards_charts,
    "exact": exact_tables.exact_charts,
}


def write() -> None:
    for path, text in render(PAGE.read_text(encoding="utf-8")).items():
        path.write_text(text, encoding="utf-8")


def render(page: str) -> dict[Path, str]:
    """Return the files: the page with its generated parts, and two for each plot."""
    files: dict[Path, str] = {}
    found: dict[str, Record] = {}
    for benchmark in BENCHMARKS:
        name = benchmark.name
        record = records.read(name)
        if record is None:
            page = put(page, name, f"Not measured yet: `python -m tests.benchmarks run --only {name}`.")
            continue
        found[name] = record
        table = _TABLES.get(name, tables.printed)(record)
        page = put(page, name, f"{table}\n\n{circumstances(record)}")
        for chart_name, chart in _CHARTS.get(name, lambda _: {})(record).items():
            for theme, colours in THEMES.items():
                files[DOCS / f"benchmarks-{chart_name}-{theme}.svg"] = _draw(chart, colours)
    return {**files, PAGE: put(page, "machines", machines(found))}


def _draw(chart: _Chart, theme: Theme) -> str:
    return bars.draw(chart, theme) if isinstance(chart, bars.Chart) else lines.draw(chart, theme)


def circumstances(record: Record) -> str:
    """Return when a benchmark ran, with a warning if its figures are not for comparison."""
    text = f"Measured {record['started'][:10]} at `{record['commit']}`."
    reasons = ["small sizes (`--quick`)"] if record["quick"] else []
    if _busy_cores(record) > _BUSY:
        reasons.append("a machine with other work")
    return f"**Not for comparison: {' and '.join(reasons)}.** {text}" if reasons else text


def machines(found: Mapping[str, Record]) -> str:
    """Return what all runs have in common, and a row for each run with its machine."""
    common = {
        f"{one['machine']['cores']} cores, {one['machine']['memoryGiB']:g} GiB, Kubernetes "
        f"{one['versions']['kubernetes']}, Python {one['versions']['python']}, seed {one['seed']}"
        for one in found.values()
    }
    rows = [
        [
            name,
            one["machine"]["cpu"].replace("(R)", "").removesuffix(" Processor"),
            f"{_busy_cores(one):g}",
        ]
        for name, one in found.items()
    ]
    table = tables.table(["run", "processor", "busy cores before"], rows)
    return f"Measured with {'; '.join(sorted(common))}:\n\n{table}"


def _busy_cores(record: Record) -> float:
    machine = record["machine"]
    # Older records have the load average.
    busy: float = machine.get("busyCoresBefore", machine.get("loadBefore"))
    return busy
