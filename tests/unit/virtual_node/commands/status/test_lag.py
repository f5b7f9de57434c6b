from __future__ import annotations

import math

import pytest

from virtual_node.commands.status import rows
from virtual_node.node_summary import lag_of

BOUNDS = (0.01, 0.1, 1.0, 10.0, math.inf)


def _buckets(*seconds: float) -> list[tuple[str, float, float]]:
    return [("down", bound, sum(one <= bound for one in seconds)) for bound in BOUNDS]


@pytest.mark.parametrize(
    ("seconds", "lag"),
    [
        pytest.param([0.005] * 98 + [0.5, 0.5], {"down": {"p50": 0.01, "p99": 1.0}}, id="bounds of buckets"),
        # Infinity is invalid in JSON.
        pytest.param([100.0], {"down": {"p50": 10.0, "p99": 10.0}}, id="beyond the last bucket"),
        pytest.param([], {}, id="nothing mirrored yet"),
    ],
)
def test_quantiles_are_the_bounds_of_their_buckets(seconds: list[float], lag):
    """A histogram has no more precise values."""
    assert lag_of(_buckets(*seconds)) == lag


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
