"""Service levels from an API server's metrics, and the search for the largest load."""

from __future__ import annotations

import math

import pytest

from tests.benchmarks.service_levels import Served, largest, levels, quantile

METRICS = """
apiserver_request_total{code="200",resource="pods",verb="POST"} 90
apiserver_request_total{code="429",resource="pods",verb="POST"} %(refused)d
apiserver_request_total{code="503",resource="pods",verb="GET"} 1
apiserver_request_duration_seconds_bucket{resource="pods",verb="POST",le="0.1"} %(fast)d
apiserver_request_duration_seconds_bucket{resource="pods",verb="POST",le="4"} 200
apiserver_request_duration_seconds_bucket{resource="pods",verb="POST",le="+Inf"} 200
apiserver_request_duration_seconds_bucket{resource="pods",verb="WATCH",le="+Inf"} 99
"""
NOTHING = Served("")


@pytest.mark.parametrize(
    ("refused", "fast", "started", "is_kept"),
    [(0, 200, 98, True), (9, 200, 98, False), (0, 190, 98, False), (0, 200, 97, False)],
)
def test_each_level_counts(refused, fast, started, is_kept):
    """Watches have no duration."""
    after = Served(METRICS % {"refused": refused, "fast": fast})
    found = levels(NOTHING, after, seconds=60, created=100, started=started)
    assert found["isKept"] == is_kept
    assert found["apiP99"] == (0.1 if fast == 200 else 4)


def test_no_requests_have_no_quantile():
    assert quantile({math.inf: 0.0}, 0.99) == 0


@pytest.mark.parametrize("limit", [5, 10, 11, 33, 1000, 1e9])
async def test_finds_the_largest_load(limit):
    """Within the tolerance; 0 if the first load is too large; the last load if none is."""
    tried = []

    async def is_kept(load):
        tried.append(load)
        return load <= limit

    found = await largest(is_kept, first=10)
    if limit < 10:
        assert found == 0
    elif limit > 10 * 2**10:
        assert found == 10 * 2**9
    else:
        assert found <= limit < found * 1.15 + 1e-9
    assert len(tried) <= 15
