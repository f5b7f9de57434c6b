from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from controller_runtime.objects import from_dict
from virtual_node.commands.status import rows


def _metrics(*seconds: float, cluster: str = "tokyo", direction: str = "down") -> str:
    registry = CollectorRegistry()
    histogram = Histogram(
        "virtual_node_mirror_seconds",
        "Lag.",
        ["cluster", "direction"],
        buckets=(0.01, 0.1, 1, 10),
        registry=registry,
    )
    for one in seconds:
        histogram.labels(cluster, direction).observe(one)
    return generate_latest(registry).decode()


def test_quantiles_are_the_bounds_of_their_buckets():
    """A histogram has no more precise values."""
    assert rows.parse_lag(_metrics(*[0.005] * 98, 0.5, 0.5), "tokyo") == {"down": {"p50": 0.01, "p99": 1.0}}


def test_beyond_the_last_bucket_its_bound_is_shown():
    """Infinity is invalid in JSON."""
    assert rows.parse_lag(_metrics(100.0), "tokyo") == {"down": {"p50": 10.0, "p99": 10.0}}


def test_other_clusters_of_the_process_do_not_count():
    """One process serves many clusters; each node shows its own."""
    assert rows.parse_lag(_metrics(1.0, cluster="paris"), "tokyo") == {}


def test_nothing_mirrored_yet_is_no_lag():
    assert rows.parse_lag(_metrics(), "tokyo") == {}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "-"),
        ({}, "-"),
        ({"down": {"p50": 0.025, "p99": 0.5}, "up": {"p50": 0.01, "p99": 0.1}}, "≤25ms (p99 ≤500ms)"),
        ({"up": {"p50": 1.0, "p99": 30.0}}, "≤1s (p99 ≤30s)"),
    ],
)
def test_the_table_shows_the_worse_direction(found, text: str):
    """One column shows who is behind."""
    assert rows.shown_lag(found) == text


VN = from_dict({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "vn"}})


class _Upper:
    """An upper API server with another provider's kubelet behind it."""

    def __init__(self, metrics: str) -> None:
        self._metrics = metrics

    async def request(self, _verb, _path, **_more):
        return self._metrics.encode()


@pytest.mark.parametrize(
    "metrics",
    [
        'virtual_node_mirror_seconds_bucket{le="0.1",cluster="vn",direction="up"} x\n',
        'virtual_node_mirror_seconds_bucket{le="0.1",cluster="vn\n',
        'virtual_node_mirror_seconds_bucket{le="0.1",cluster="vn"} 1\n',
        'virtual_node_mirror_seconds_bucket{le="+Inf",cluster="vn",direction="up"} 5\n',
    ],
)
async def test_unknown_metrics_are_no_lag(metrics: str):
    """One node's invalid response must not break the table."""
    upper: Any = _Upper(metrics)
    assert await rows.lag_of_node(upper, VN) is None
