"""Horizontal bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hack.plots.svg import WIDTH, Theme, head, legend, line, text

_LABEL, _RIGHT, _TOP = 230, 70, 64
_BAR, _GAP = 13, 9


@dataclass(frozen=True, slots=True)
class Bar:
    """The mean of several runs, and their range."""

    mean: float
    low: float
    high: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One line of bars, one for each series."""

    label: str
    bars: Sequence[Bar | None]
    mark: float | None = None
    """A value to compare with."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Content of a chart."""

    title: str
    series: Sequence[str]
    rows: Sequence[Row]
    low: float
    high: float
    step: float
    unit: str
    mark: str = ""
    """Meaning of the marks."""


def draw(chart: Chart, theme: Theme) -> str:
    """Return a chart as SVG."""
    row_height = len(chart.series) * _BAR + _GAP
    bottom = _TOP + len(chart.rows) * row_height
    height = bottom + 30
    scale = (WIDTH - _LABEL - _RIGHT) / (chart.high - chart.low)

    def x(value: float) -> float:
        return _LABEL + (min(max(value, chart.low), chart.high) - chart.low) * scale

    parts = head(chart.title, height, theme)
    names, at = legend(chart.series, _LABEL, theme)
    parts += names
    if chart.mark:
        parts.append(line(at + 5, 34, at + 5, 49, theme.mark, 2))
        parts.append(text(at + 14, 46, chart.mark, theme.text))
    for number in range(round((chart.high - chart.low) / chart.step) + 1):
        value = chart.low + number * chart.step
        parts.append(line(x(value), _TOP - 6, x(value), bottom, theme.grid, 1))
        parts.append(text(x(value), bottom + 16, f"{value:g} {chart.unit}", theme.text, anchor="middle"))
    for number, row in enumerate(chart.rows):
        top = _TOP + number * row_height
        middle = top + (row_height - _GAP) / 2 + 4
        parts.append(text(_LABEL - 10, middle, row.label, theme.text, anchor="end"))
        for place, bar in enumerate(row.bars):
            if bar is None:
                continue
            y = top + place * _BAR
            width = max(x(bar.mean) - _LABEL, 1.0)
            parts.append(
                f"<rect x='{_LABEL}' y='{y}' width='{width:.1f}' height='{_BAR - 2}' fill='{theme.series[place]}'/>"
            )
            parts.append(line(x(bar.low), y + 5, x(bar.high), y + 5, theme.text, 1))
            parts.append(
                text(
                    x(max(bar.high, row.mark or bar.high)) + 6, y + 10, f"{bar.mean:.2f}", theme.text, size=11
                )
            )
        if row.mark is not None:
            parts.append(line(x(row.mark), top - 3, x(row.mark), top + row_height - _GAP + 1, theme.mark, 2))
    return "\n".join([*parts, "</svg>", ""])
