"""Arithmetic that several formulas share. No IO."""

from __future__ import annotations

import math

NEUTRAL = 0.5
"""Score of a node without data: neither better nor worse than an average node."""


def clamp(value: float, low: float = 0.0, high: float = 1.0) -> float:
    """Return the value limited to a range; NaN becomes the lower end."""
    return min(high, max(low, value)) if value == value else low  # noqa: PLR0124 - NaN


def rounded(value: float) -> int:
    """Round half away from zero, as Go's ``math.Round``; Python's ``round`` rounds half to even."""
    return math.floor(value + 0.5) if value >= 0 else -math.floor(-value + 0.5)
