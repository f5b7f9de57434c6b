"""Expressions that panels share. No IO."""

from __future__ import annotations

RATE = "[$__rate_interval]"
OWN_SERIES = 'job="virtual-node"'
"""Selects this project's series where other programs use the same metric name: ``workqueue_depth``, ``process_…``."""


def quantile(share: str, metric: str, by: str, matchers: str = "") -> str:
    """Return the expression of a histogram's quantile, by labels besides ``le``."""
    selector = f"{{{matchers}}}" if matchers else ""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{selector}{RATE})))"


def rate(metric: str, by: str, matchers: str = "") -> str:
    """Return the expression of a counter's rate per second, by labels."""
    selector = f"{{{matchers}}}" if matchers else ""
    return f"sum by ({by}) (rate({metric}{selector}{RATE}))"
