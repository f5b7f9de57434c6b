"""Queries that panels share. No IO."""

from __future__ import annotations

from typing import NamedTuple

RATE = "[$__rate_interval]"
OWN_SERIES = 'job="virtual-node"'
"""Selects this project's series where other programs use the same metric name, such as ``workqueue_depth``."""


class Query(NamedTuple):
    """An expression, and the legend of its series."""

    expression: str
    legend: str = ""


def quantile(share: str, metric: str, by: str, matchers: str = "", *, legend: str = "") -> Query:
    """Return a histogram's quantile, by labels besides ``le``. The default legend has the values of these labels."""
    rates = f"rate({metric}_bucket{_selector(matchers)}{RATE})"
    return Query(f"histogram_quantile({share}, sum by ({by}, le) ({rates}))", legend or _values(by))


def quantiles(metric: str, by: str, matchers: str = "") -> list[Query]:
    """Return a histogram's median and 99th percentile, by a label besides ``le``."""
    return [
        quantile(share, metric, by, matchers, legend=f"{name} {_values(by)}")
        for share, name in (("0.5", "p50"), ("0.99", "p99"))
    ]


def rate(metric: str, by: str, matchers: str = "", *, legend: str = "") -> Query:
    """Return a counter's rate per second, by labels. The default legend has the values of these labels."""
    return Query(f"sum by ({by}) (rate({metric}{_selector(matchers)}{RATE}))", legend or _values(by))


def current(metric: str, by: str, matchers: str = "", *, function: str = "max", legend: str = "") -> Query:
    """Return a gauge's value, by labels. The default legend has the values of these labels."""
    return Query(f"{function} by ({by}) ({metric}{_selector(matchers)})", legend or _values(by))


def _selector(matchers: str) -> str:
    return f"{{{matchers}}}" if matchers else ""


def _values(labels: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
