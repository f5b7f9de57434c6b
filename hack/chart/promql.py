"""The expressions that panels share. Pure."""

from __future__ import annotations

RATE = "[$__rate_interval]"
OURS = 'job="virtual-node"'
"""Tells our series from others' where the name is everybody's: ``workqueue_depth``, ``process_…``."""


def quantile(share: str, metric: str, by: str, matchers: str = "") -> str:
    """A share of a histogram's observations, by labels besides ``le``."""
    selector = f"{{{matchers}}}" if matchers else ""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{selector}{RATE})))"


def rate(metric: str, by: str, matchers: str = "") -> str:
    """A counter per second, by labels."""
    selector = f"{{{matchers}}}" if matchers else ""
    return f"sum by ({by}) (rate({metric}{selector}{RATE}))"
