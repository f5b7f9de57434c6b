"""Lines over a number, such as pods or seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hack.plots.svg import WIDTH, Theme, head, legend, line, text

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 80, 30, 78, 304, 344
_TICKS = 6
"""Approximate number of values on a linear axis."""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot."""

    label: str
    is_logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class LineChart:
    """Content of a plot."""

    title: str
    x: Axis
    y: Axis
    series: Mapping[str, Sequence[Point]]
    """Points of each line in the order of x; at most three lines. Logarithmic axes leave out values that are not
    positive."""
    mark_points: bool = field(default=True)
    """Whether each point has a dot; False suits samples over time."""


def draw(chart: LineChart, theme: Theme) -> str:
    """Return a plot as SVG."""
    points = [point for line_ in chart.series.values() for point in line_]
    x = _Scale(chart.x, [point[0] for point in points], _LEFT, WIDTH - _RIGHT)
    y = _Scale(chart.y, [0.0, *(point[1] for point in points)], _BOTTOM, _TOP)
    parts = head(chart.title, _HEIGHT, theme)
    names, _ = legend(list(chart.series), _LEFT, theme)
    parts += names
    for value in y.ticks:
        parts.append(line(_LEFT, y(value), WIDTH - _RIGHT, y(value), theme.grid, 1))
        parts.append(text(_LEFT - 8, y(value) + 4, f"{value:g}", theme.text, anchor="end"))
    for value in x.ticks:
        parts.append(line(x(value), _TOP, x(value), _BOTTOM, theme.grid, 1))
        parts.append(text(x(value), _BOTTOM + 16, f"{value:g}", theme.text, anchor="middle"))
    parts.append(text((_LEFT + WIDTH - _RIGHT) / 2, _HEIGHT - 6, chart.x.label, theme.text, anchor="middle"))
    parts.append(text(12, _TOP - 8, chart.y.label, theme.text))
    for colour, found in zip(theme.series, chart.series.values(), strict=False):
        shown = [(x(one), y(other)) for one, other in found if x.has(one) and y.has(other)]
        path = " ".join(f"{one:.1f},{other:.1f}" for one, other in shown)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        if chart.mark_points:
            parts += [
                f"<circle cx='{one:.1f}' cy='{other:.1f}' r='3' fill='{colour}'/>" for one, other in shown
            ]
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """Positions of an axis' values on the page."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self._is_logarithmic = axis.is_logarithmic
        usable = [value for value in values if self.has(value)] or [1.0]
        self.ticks = _powers(usable) if axis.is_logarithmic else _steps(usable)
        low, high = self._place(self.ticks[0]), self._place(max(self.ticks[-1], *usable))
        self._start, self._low, self._factor = start, low, (end - start) / ((high - low) or 1.0)

    def has(self, value: float) -> bool:
        """Report whether the axis can show a value."""
        return value > 0 or not self._is_logarithmic

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        return self._start + (self._place(value) - self._low) * self._factor

    def _place(self, value: float) -> float:
        return math.log10(value) if self._is_logarithmic else value


def _powers(values: Sequence[float]) -> list[float]:
    """Return the powers of ten that enclose all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _steps(values: Sequence[float]) -> list[float]:
    """Return round values with equal steps that enclose all values."""
    low, high = min(values), max(values)
    rough = (high - low) / _TICKS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.floor(low / step)
    return [round(number * step, 10) for number in range(first, math.ceil(high / step) + 1)]
