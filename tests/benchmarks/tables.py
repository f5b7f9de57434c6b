"""Tables of the benchmarks' page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from tests.benchmarks.records import Record


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, with the least and greatest value of several."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


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


def soak(record: Record) -> str:
    """Return what happened in a soak, and its conditions."""
    figures = record["figures"]
    text = (
        f"{figures['created']:,} pods and {len(figures['faults'])} faults in {figures['minutes']:g} minutes. "
        "Memory is that of the process that is not killed."
    )
    return f"{text}\n\n{targets(record)}"


def printed(record: Record) -> str:
    """Return the lines that a program printed."""
    figures = record["figures"]
    return "\n".join([f"`{figures['command']}`", "", "```text", *figures["lines"], "```"])


def target(what: str, measured: float, most: float, unit: str) -> dict[str, Any]:
    """Return a row of ``targets`` for a figure that must be at most so much."""
    return {
        "what": what,
        "wanted": f"≤ {most:g} {unit}".strip(),
        "measured": f"{measured:,.4g} {unit}".strip(),
        "isMet": measured <= most,
    }


def targets(record: Record) -> str:
    """Return the figures of a benchmark with targets: what, wanted, measured, met or missed."""
    rows = [
        [row["what"], row["wanted"], row["measured"], "met" if row["isMet"] else "**missed**"]
        for row in record["figures"]["targets"]
    ]
    return table(["", "wanted", "measured", ""], rows)
