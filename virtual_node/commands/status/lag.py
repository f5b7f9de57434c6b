"""Reads a virtual node's mirror lag, as measured by its own process, through the upper API server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from clusterset.model import names
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Forbidden
from controller_runtime.objects import Object

_METRIC = "virtual_node_mirror_seconds"
_TIMEOUT = 3.0
_QUANTILES = {"p50": 0.5, "p99": 0.99}

Lag = dict[str, dict[str, float]]
"""Maps direction (down, up) to p50 and p99 in seconds; each is the upper bound of its histogram bucket."""


async def of_node(upper: Client, node: Object) -> Lag | None:
    """Return a virtual node's lag since its process started; None: not readable, or nothing was mirrored.

    Raises:
        Forbidden: the caller may not get ``nodes/proxy``.
    """
    cluster = node.labels.get(names.LABEL_LOWER_CLUSTER, node.name)
    try:
        answer = await upper.request("GET", f"/api/v1/nodes/{node.name}/proxy/metrics", timeout=_TIMEOUT)
    except Forbidden:
        raise
    except ApiError:
        return None
    try:
        return parse(answer.decode("utf-8", "replace"), cluster) or None
    except (ValueError, LookupError):
        # The endpoint may belong to another program or another version, with any output.
        return None


def parse(text: str, cluster: str) -> Lag:
    """Return the lag of one lower cluster from the metrics of a process.

    Args:
        text: metrics in the Prometheus text format.
        cluster: name of the lower cluster.
    """
    buckets: dict[str, list[tuple[float, float]]] = {}
    wanted = "\n".join(line for line in text.splitlines() if _METRIC in line) + "\n"
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            if sample.name == f"{_METRIC}_bucket" and sample.labels.get("cluster") == cluster:
                bound = float(sample.labels["le"])
                buckets.setdefault(sample.labels["direction"], []).append((bound, sample.value))
    return {
        direction: {name: _quantile(sorted(found), share) for name, share in _QUANTILES.items()}
        for direction, found in buckets.items()
        if max(count for _, count in found) and any(math.isfinite(bound) for bound, _ in found)
    }


def _quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """Return the upper bound of the quantile's bucket; the last finite bound stands for the infinite bucket."""
    total = buckets[-1][1]
    finite = [bound for bound, _ in buckets if math.isfinite(bound)]
    for bound, count in buckets:
        if count >= share * total and math.isfinite(bound):
            return bound
    return finite[-1]


def shown(lag: Mapping[str, Any] | None) -> str:
    """Return the median and p99 of the worse direction for a table, such as ``≤25ms (p99 ≤0.5s)``; ``-``: unknown."""
    if not lag:
        return "-"
    worst = max(lag.values(), key=lambda one: (one["p99"], one["p50"]))
    return f"≤{_short(worst['p50'])} (p99 ≤{_short(worst['p99'])})"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"
