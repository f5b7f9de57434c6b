"""Draws the plots of the documentation and writes its tables, both from the committed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.docs.markdown import code, table
from hack.placement import learning_report, records, risk
from hack.placement.campaign import CLUSTERS, LOWER, ONE_CLUSTER, PUBLISHED, SEVERAL
from hack.placement.records import RESULTS
from hack.plots.bars import Bar, Chart, Row, draw
from hack.plots.page import put
from hack.plots.svg import THEMES

DOCS = Path("docs/evidence")
PAGE = DOCS / "placement-evaluation.md"
_NAMES = {
    "FGD": "FGD, best node",
    "FGD-likely": "fragmentation",
    "FGD-likely-learned": "fragmentation, learned",
    "SumOfCapacity": "sum of capacity",
}
_NAMES_IN_ONE = {
    "FGD-first": "FGD",
    "FGD": "fragmentation",
    "FGD-learned": "fragmentation, learned",
}
_SEEDS = 10
"""Seeds of a complete evaluation; the page shows the number if there are fewer."""
Record = Mapping[str, Any]


def write() -> None:
    """Draw all plots and write the tables."""
    for path, text in render(PAGE.read_text(encoding="utf-8")).items():
        path.write_text(text, encoding="utf-8")


def render(page: str) -> dict[Path, str]:
    """Return the files: two for each plot, and the page with its tables."""
    trace, overload = records.read(RESULTS / "default.jsonl"), records.read(RESULTS / "risk.jsonl")
    overloaded = [
        Row(agent, [_bar(overload, "overloaded", agent=agent, load=load) for load in risk.RATES])
        for agent in risk.AGENTS
    ]
    charts = {
        "one-cluster": _one_cluster(trace),
        "clusters": _clusters(trace),
        "overload": Chart("Node time above 90 % CPU", ["share of node time"], overloaded, 0, 1.5, 0.25, "%"),
    }
    found = {
        DOCS / f"placement-{name}-{theme}.svg": draw(chart, colours)
        for name, chart in charts.items()
        for theme, colours in THEMES.items()
    }
    for name, chart in charts.items():
        page = put(page, name, _table(chart))
    page = put(page, "variants", _variants())
    learned = records.read(RESULTS / "learning.jsonl")
    page = put(page, "learned", learning_report.estimates(learned))
    page = put(page, "learned, in parts", learning_report.parts(learned))
    found[PAGE] = page
    return found


def _one_cluster(trace: Sequence[Record]) -> Chart:
    rows = [
        Row(
            _NAMES_IN_ONE.get(policy, policy),
            [_bar(trace, "at100", policy=policy, clusters=1)],
            PUBLISHED.get(policy),
        )
        for policy in ONE_CLUSTER
    ]
    title = "GPUs allocated in one cluster when 100 % are requested (axis from 84 %)"
    return Chart(title, ["measured"], _sorted(rows), 84, 98, 2, "%", mark="published")


def _clusters(trace: Sequence[Record]) -> Chart:
    rows = [
        Row(
            _NAMES.get(policy, policy),
            [_bar(trace, "at100", policy=policy, clusters=CLUSTERS, lower=lower) for lower in LOWER],
        )
        for policy in SEVERAL
    ]
    title = f"GPUs allocated over {CLUSTERS} clusters, by lower scheduler (axis from 84 %)"
    return Chart(title, list(LOWER), _sorted(rows), 84, 98, 2, "%")


def _variants() -> str:
    rows = []
    for path in sorted(RESULTS.glob("variant-*.jsonl")):
        found, name = records.read(path), path.stem.removeprefix("variant-")
        ones = [_bar(found, "at100", policy=policy, clusters=1) for policy in ("FGD-first", "FGD")]
        several = [
            _bar(found, "at100", policy=policy, clusters=CLUSTERS, lower="LeastAllocated")
            for policy in ("FGD-likely", "SumOfCapacity")
        ]
        published = f"{VARIANTS[name]:.2f} %" if name in VARIANTS else "–"
        rows.append([code(name), published, *map(_cell, [*ones, *several])])
    heads = ("published", "FGD, one cluster", "fragmentation, one cluster")
    return table(("variant", *heads, "fragmentation, 20 clusters", "sum of capacity, 20 clusters"), rows)


VARIANTS = {
    "cpu250": 93.20,
    "gpushare40": 93.96,
    "gpushare100": 86.64,
    "gpuspec20": 94.66,
    "gpuspec25": 93.91,
    "gpuspec33": 87.84,
}
"""Published results of FGD at 100 % requested: the artifact's expected results."""


def _bar(found: Sequence[Record], key: str, **wanted: Any) -> Bar | None:
    values = [one[key] for one in found if all(one[name] == value for name, value in wanted.items())]
    return Bar(sum(values) / len(values), min(values), max(values), len(values)) if values else None


def _sorted(rows: list[Row]) -> list[Row]:
    def mean(row: Row) -> float:
        return max((bar.mean for bar in row.bars if bar is not None), default=0.0)

    return sorted(rows, key=mean, reverse=True)


def _table(chart: Chart) -> str:
    rows = []
    for row in chart.rows:
        mark = "–" if row.mark is None else f"{row.mark:.2f} %"
        rows.append([row.label, *map(_cell, row.bars), *([mark] if chart.mark else [])])
    return table(["", *chart.series, *([chart.mark] if chart.mark else [])], rows)


def _cell(bar: Bar | None) -> str:
    if bar is None:
        return "–"
    seeds = f"{bar.low:.2f}–{bar.high:.2f}" if bar.count > 1 else "1 seed"
    return f"{bar.mean:.2f} % ({seeds}{f', {bar.count} seeds' if 1 < bar.count < _SEEDS else ''})"
