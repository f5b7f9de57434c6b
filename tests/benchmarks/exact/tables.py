"""Tables and the plot of ``bench_exact``. It imports no clusters, because ``render`` needs none."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hack.plots.bars import Bar, Chart, Row
from tests.benchmarks.records import Record
from tests.benchmarks.tables import table, targets

_PLOTTED = ("promisedTwice", "waitingAlthoughFit")


def exact(record: Record) -> str:
    """Return the counts of all variants and scenes, and the targets."""
    heads = ["", "pods", "bound", "promised twice", "of these > 2 s", "waiting", "although they fit", "placed by a lower scheduler", "partial groups"]  # fmt: skip
    columns = ("pods", "bound", "promisedTwice", "promisedTwiceLong", "waiting", "waitingAlthoughFit", "lowerSchedulerPlaces", "partialGroups")  # fmt: skip
    figures = record["figures"]
    rows = [[row["variant"], *(f"{row[name]:,}" for name in columns)] for row in figures["variants"]]
    parts = [table(heads, rows), _preferences(record), targets(record)]
    return "\n\n".join(part for part in parts if part)


def _preferences(record: Record) -> str:
    """Return how often the lower schedulers chose another node than the preferred one."""
    figures = record["figures"]
    scenes = [(row["variant"], row) for row in figures["variants"] if row["preferring"]]
    if many := figures["manyNodes"]:
        scenes.append((f"a lower cluster of {many['nodes']} nodes", many))
    heads = ["", "lower pods that prefer a node", "node without room", "node ignored", "promised twice"]
    columns = ("preferring", "preferredLackedRoom", "preferenceIgnored", "promisedTwice")
    return table(heads, [[name, *(f"{row[column]:,}" for column in columns)] for name, row in scenes])


def exact_charts(record: Record) -> Mapping[str, Chart]:
    """Return the plot of ``bench_exact`` by its name: a row for each variant."""
    variants = record["figures"]["variants"]
    shares = {
        row["variant"]: [100 * row[name] / row["pods"] for name in _PLOTTED]
        for row in variants
        if row["pods"]
    }
    most = max((share for found in shares.values() for share in found), default=0.0)
    step = max(1, math.ceil(most / 6))
    rows = [Row(variant, [Bar(share, share, share) for share in found]) for variant, found in shares.items()]
    title = "Broken promises and unused room: share of all pods"
    names = ["promised twice", "waiting although they fit"]
    return {"exact": Chart(title, names, rows, 0, step * max(1, math.ceil(most / step)), step, "%")}
