"""Service levels of one load, and the search for the largest load that keeps them. No IO.

The levels are those of vCluster's performance tests that apply to mirroring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

API_P99, ERRORS, CONVERGENCE = 2.0, 0.1, 0.98
"""Most seconds of the 99th percentile of requests, most 429 and 5xx per second, least share of pods that start."""
_TOTAL, _DURATION = "apiserver_request_total", "apiserver_request_duration_seconds_bucket"
_STREAMS = frozenset({"WATCH", "CONNECT", "WATCHLIST"})


class Served:
    """Requests of an API server: number of refused and failed ones, and numbers by upper bound of their duration."""

    def __init__(self, metrics: str) -> None:
        """Read the text of an API server's metrics."""
        self.errors = 0.0
        self.durations: defaultdict[float, float] = defaultdict(float)
        """Cumulated, as in Prometheus."""
        wanted = (f"{_TOTAL}{{", f"{_DURATION}{{")
        lines = [line for line in metrics.splitlines() if line.startswith(wanted)]
        for family in text_string_to_metric_families("\n".join([*lines, ""])):
            for name, labels, value, *_ in family.samples:
                if name == _TOTAL and (labels["code"] == "429" or labels["code"].startswith("5")):
                    self.errors += value
                elif name == _DURATION and labels["verb"] not in _STREAMS:
                    self.durations[float(labels["le"])] += value


def levels(before: Served, after: Served, *, seconds: float, created: int, started: int) -> dict[str, Any]:
    """Return the levels of one cluster between two readings, and whether all are kept.

    Args:
        before: the requests before the load.
        after: the requests after it.
        seconds: duration of the load.
        created: number of pods.
        started: number of them that have started in time.
    """
    counts = {bound: after.durations[bound] - before.durations[bound] for bound in after.durations}
    p99 = quantile(counts, 0.99)
    errors = (after.errors - before.errors) / seconds
    share = started / created if created else 0.0
    return {
        "apiP99": p99,
        "errors": errors,
        "convergence": share,
        "isKept": p99 <= API_P99 and errors <= ERRORS and share >= CONVERGENCE,
    }


def quantile(counts: Mapping[float, float], share: float) -> float:
    """Return the upper bound of the bucket that has a quantile; 0 without requests.

    Args:
        counts: cumulated numbers by upper bound.
        share: such as 0.99.
    """
    total = counts.get(float("inf"), 0.0)
    return min((bound for bound, count in counts.items() if total and count >= share * total), default=0.0)


async def largest(
    is_kept: Callable[[float], Awaitable[bool]], *, first: float, tolerance: float = 0.15, rises: int = 10
) -> float:
    """Return the largest load that keeps the levels: double it until they are not kept, then bisect.

    Args:
        is_kept: tries a load.
        first: the first load. The result is 0 if it is too large.
        tolerance: most that the least load that failed may exceed the result, as a share of the result.
        rises: after so many doublings without a failure the last load is the result.
    """
    good, bad = 0.0, first
    for _ in range(rises):
        if not await is_kept(bad):
            break
        good, bad = bad, 2 * bad
    else:
        return good
    while good and bad > good * (1 + tolerance):
        middle = (good + bad) / 2
        if await is_kept(middle):
            good = middle
        else:
            bad = middle
    return good
