"""The last hour of a lower cluster, and its mirroring lag."""

from __future__ import annotations

import pytest

from virtual_node import metrics
from virtual_node.web.overview import History, late_since

_INF = float("inf")


@pytest.mark.parametrize(
    ("before", "now", "seconds"),
    [
        ({}, {}, None),
        ({}, {0.1: 0, 1: 0, _INF: 0}, None),
        ({}, {0.1: 99, 1: 100, _INF: 100}, 0.1),
        ({}, {0.1: 90, 1: 100, _INF: 100}, 1),
        ({0.1: 90, 1: 100, _INF: 100}, {0.1: 190, 1: 200, _INF: 200}, 0.1),
        ({0.1: 90, 1: 100, _INF: 100}, {0.1: 90, 1: 100, _INF: 100}, None),
        ({}, {0.1: 0, 1: 0, _INF: 5}, 1),
    ],
)
def test_lag_is_that_of_the_last_interval(
    before: dict[float, float], now: dict[float, float], seconds: float | None
) -> None:
    """Not since the start of the process; the bound of the bucket with 99 of 100."""
    assert late_since(before, now) == seconds


def test_keeps_an_hour_and_forgets_removed_clusters() -> None:
    history = History()
    for count in range(200):
        history.sample({"tokyo": count, "oslo": 1})
    assert history.of("tokyo")["pods"] == list(range(80, 200))
    history.sample({"tokyo": 1})
    assert history.of("oslo")["pods"] == []


def test_reads_the_lag_of_this_process() -> None:
    """The slower of both directions."""
    history = History()
    history.sample({"page-test": 1})
    metrics.MIRROR_SECONDS.labels("page-test", "up").observe(0.02)
    metrics.MIRROR_SECONDS.labels("page-test", "down").observe(2)
    history.sample({"page-test": 1})
    assert (history.lag("page-test"), history.of("page-test")["lag"]) == (2.5, [None, 2.5])
    history.sample({"page-test": 1})
    assert history.lag("page-test") == 2.5
    metrics.MIRROR_SECONDS.remove("page-test", "up")
    metrics.MIRROR_SECONDS.remove("page-test", "down")
