"""How far a virtual node is behind, as its own process measures it, read through the upper API server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from controller_runtime.api import names
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Forbidden
from controller_runtime.objects import Object

_METRIC = "virtual_node_mirror_seconds"
_TIMEOUT = 3.0
_QUANTILES = {"p50": 0.5, "p99": 0.99}

Lag = dict[str, dict[str, float]]
"""Direction (down, up) → p50 and p99 in seconds: the bound of the histogram's bucket that they fall into."""


async def of_node(upper: Client, node: Object) -> Lag | None:
    """The lag of one virtual node since its process started; None when it cannot be read, or nothing was mirrored.

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
        # Another program's virtual node, or another version's, may say what it likes.
        return None


def parse(text: str, cluster: str) -> Lag:
    """The lag of one lower cluster in a process' metrics.

    Args:
        text: in the Prometheus text format.
        cluster: the lower cluster's name.
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
    """Upper bound of the bucket; the last finite one stands for whatever lies beyond."""
    total = buckets[-1][1]
    finite = [bound for bound, _ in buckets if math.isfinite(bound)]
    for bound, count in buckets:
        if count >= share * total and math.isfinite(bound):
            return bound
    return finite[-1]


def shown(lag: Mapping[str, Any] | None) -> str:
    """For a table: the worse direction's median and 99th percentile, such as ``≤25ms, ≤0.5s``."""
    if not lag:
        return "-"
    worst = max(lag.values(), key=lambda one: (one["p99"], one["p50"]))
    return f"≤{_short(worst['p50'])} (p99 ≤{_short(worst['p99'])})"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"
