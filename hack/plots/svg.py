"""Colours and elements of the plots, for a light and a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
_FONT = "font-family='system-ui, sans-serif'"


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


def head(title: str, height: float, theme: Theme) -> list[str]:
    """Return the first elements of a plot: its size, title and background."""
    return [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img' {_FONT} font-size='12'>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{WIDTH}' height='{height}' fill='{theme.background}'/>",
        text(12, 22, title, theme.text, size=15),
    ]


def legend(names: Sequence[str], left: float, theme: Theme) -> tuple[list[str], float]:
    """Return the elements of the legend (colours and names of the series), and the x where the legend ends."""
    parts, at = [], left
    for name, colour in zip(names, theme.series, strict=False):
        parts.append(f"<rect x='{at}' y='36' width='11' height='11' fill='{colour}'/>")
        parts.append(text(at + 16, 46, name, theme.text))
        at += 40 + 7 * len(name)
    return parts, at


def text(x: float, y: float, content: str, colour: str, *, anchor: str = "start", size: int = 12) -> str:
    """Return a line of text."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' fill='{colour}' text-anchor='{anchor}' font-size='{size}'>"
        f"{escape(content)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:  # noqa: PLR0917 - as SVG has them
    """Return a straight line."""
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' stroke-width='{width}'/>"
