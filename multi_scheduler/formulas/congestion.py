"""Congestion of a node as a number that something else writes to it, by kube-safe-scheduler's formula. Pure."""

from __future__ import annotations

from multi_scheduler.formulas.numbers import rounded

ANNOTATION = "congestion-factor"
DEFAULT_MAXIMUM = 100


def score(factor: str | None, maximum: int = DEFAULT_MAXIMUM) -> float:
    """Return 1 for a node without congestion, 0 for one at the maximum or beyond.

    Args:
        factor: the annotation; not a positive integer: there is no congestion.
        maximum: the factor of a node that is congested entirely.
    """
    try:
        value = int(factor or "")
    except ValueError:
        value = 0
    return 1 - min(max(value, 0), maximum) / maximum


def points(factor: str | None, maximum: int = DEFAULT_MAXIMUM) -> int:
    """Return the original's integer, 0 to 10."""
    return rounded(10 * score(factor, maximum))
