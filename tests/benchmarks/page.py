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
    "replay": tables.replay,
    "inspect": tables.inspect,
    "exact": exact_tables.exact,
}
"""Benchmarks with tables of their own; for others the page shows the printed lines."""
_Chart = bars.Chart | lines.LineChart
_CHARTS: Mapping[str, Callable[[Record], Mapping[str, _Chart]]] = {
    "mirroring": tables.mirroring_charts,
    "exact": exact_tables.exact_charts,
}


def write() -> None:
    for path, text in render(PAGE.read_text(encoding="utf-8")).items():
        path.write_text(text, encoding="utf-8")


def render(page: str) -> dict[Path, str]:
    """Return the files: the page with its generated parts, and two for each plot."""
    files: dict[Path, str] = {}
    for benchmark in BENCHMARKS:
        name = benchmark.name
        record = records.read(name)
        if record is None:
            page = put(page, name, f"Not measured yet: `python -m tests.benchmarks run --only {name}`.")
            continue
        table = _TABLES.get(name, tables.printed)(record)
        page = put(page, name, f"{table}\n\n{circumstances(record)}")
        for chart_name, chart in _CHARTS.get(name, lambda _: {})(record).items():
            for theme, colours in THEMES.items():
                files[DOCS / f"benchmarks-{chart_name}-{theme}.svg"] = _draw(chart, colours)
    return {**files, PAGE: page}


def _draw(chart: _Chart, theme: Theme) -> str:
    return bars.draw(chart, theme) if isinstance(chart, bars.Chart) else lines.draw(chart, theme)


def circumstances(record: Record) -> str:
    """Return a sentence about the machine and the run, with a warning if the figures are not for comparison."""
    machine, versions = record["machine"], record["versions"]
    minutes = max(1, round(record["seconds"] / 60))
    busy = machine.get("busyCoresBefore", machine.get("loadBefore"))  # older records have the load average
    text = (
        f"Measured {record['started'][:10]} at `{record['commit']}` in {minutes} min: {machine['cores']} cores "
        f"({machine['cpu']}), {busy:g} busy before the run, {machine['memoryGiB']:g} GiB, "
        f"Kubernetes {versions['kubernetes']}, Python {versions['python']}, seed {record['seed']}."
    )
    reasons = ["small sizes (`--quick`)"] if record["quick"] else []
    if busy > _BUSY:
        reasons.append("a machine with other work")
    if reasons:
        text = f"**Not for comparison: {' and '.join(reasons)}.** {text}"
    return text
