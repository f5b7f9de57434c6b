"""kube-safe-scheduler's congestion formula, from an annotation that another program writes. No IO."""

from __future__ import annotations

from multi_scheduler.formulas.numbers import rounded

ANNOTATION = "congestion-factor"
DEFAULT_MAXIMUM = 100


def score(factor: str | None, maximum: int = DEFAULT_MAXIMUM) -> float:
    """Return 1 for a node without congestion, 0 at the maximum or above.

    Args:
        factor: value of the annotation; anything but a positive integer: no congestion.
        maximum: factor of a fully congested node.
    """
    try:
        value = int(factor or "")
    except ValueError:
        value = 0
    return 1 - min(max(value, 0), maximum) / maximum


def points(factor: str | None, maximum: int = DEFAULT_MAXIMUM) -> int:
    """Return kube-safe-scheduler's integer, 0 to 10."""
    return rounded(10 * score(factor, maximum))
