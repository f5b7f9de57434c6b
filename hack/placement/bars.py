"""Horizontal bars as SVG, for a light and a dark page. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LABEL, _RIGHT, _TOP = 760, 230, 70, 64
_BAR, _GAP = 13, 9
_FONT = "font-family='system-ui, sans-serif'"


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


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours."""

    background: str
    text: str
    grid: str
    series: Sequence[str]
    mark: str


THEMES = {
    "light": Theme("#ffffff", "#1f2328", "#d1d9e0", ("#0969da", "#bf8700", "#8250df"), "#cf222e"),
    "dark": Theme("#0d1117", "#f0f6fc", "#3d444d", ("#4493f8", "#d29922", "#ab7df8"), "#ff7b72"),
}


def draw(chart: Chart, theme: Theme) -> str:
    """Return a chart as SVG."""
    row_height = len(chart.series) * _BAR + _GAP
    bottom = _TOP + len(chart.rows) * row_height
    height = bottom + 30
    scale = (_WIDTH - _LABEL - _RIGHT) / (chart.high - chart.low)

    def x(value: float) -> float:
        return _LABEL + (min(max(value, chart.low), chart.high) - chart.low) * scale

    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' role='img' {_FONT} font-size='12'>",
        f"<title>{escape(chart.title)}</title>",
        f"<rect width='{_WIDTH}' height='{height}' fill='{theme.background}'/>",
        _text(12, 22, chart.title, theme.text, size=15),
    ]
    at = _LABEL
    for name, colour in zip(chart.series, theme.series, strict=False):
        parts.append(f"<rect x='{at}' y='36' width='11' height='11' fill='{colour}'/>")
        parts.append(_text(at + 16, 46, name, theme.text))
        at += 40 + 7 * len(name)
    if chart.mark:
        parts.append(_line(at + 5, 34, at + 5, 49, theme.mark, 2))
        parts.append(_text(at + 14, 46, chart.mark, theme.text))
    for number in range(round((chart.high - chart.low) / chart.step) + 1):
        value = chart.low + number * chart.step
        parts.append(_line(x(value), _TOP - 6, x(value), bottom, theme.grid, 1))
        parts.append(_text(x(value), bottom + 16, f"{value:g} {chart.unit}", theme.text, anchor="middle"))
    for number, row in enumerate(chart.rows):
        top = _TOP + number * row_height
        middle = top + (row_height - _GAP) / 2 + 4
        parts.append(_text(_LABEL - 10, middle, row.label, theme.text, anchor="end"))
        for place, bar in enumerate(row.bars):
            if bar is None:
                continue
            y = top + place * _BAR
            width = max(x(bar.mean) - _LABEL, 1.0)
            parts.append(
                f"<rect x='{_LABEL}' y='{y}' width='{width:.1f}' height='{_BAR - 2}' fill='{theme.series[place]}'/>"
            )
            parts.append(_line(x(bar.low), y + 5, x(bar.high), y + 5, theme.text, 1))
            parts.append(
                _text(
                    x(max(bar.high, row.mark or bar.high)) + 6, y + 10, f"{bar.mean:.2f}", theme.text, size=11
                )
            )
        if row.mark is not None:
            parts.append(_line(x(row.mark), top - 3, x(row.mark), top + row_height - _GAP + 1, theme.mark, 2))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, colour: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' fill='{colour}' text-anchor='{anchor}' font-size='{size}'>"
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:  # noqa: PLR0917 - as SVG has them
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' stroke-width='{width}'/>"
