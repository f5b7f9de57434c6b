"""Small arithmetic that several formulas share. Pure."""

from __future__ import annotations

import math

NEUTRAL = 0.5
"""The score of a node of which nothing is known: neither better nor worse than a node of average quality."""


def clamp(value: float, low: float = 0.0, high: float = 1.0) -> float:
    """Return the value limited to a range; NaN becomes the lower end."""
    return min(high, max(low, value)) if value == value else low  # noqa: PLR0124 - NaN


def rounded(value: float) -> int:
    """Round half away from zero, as Go's ``math.Round``; Python's ``round`` rounds half to even."""
    return math.floor(value + 0.5) if value >= 0 else -math.floor(-value + 0.5)
