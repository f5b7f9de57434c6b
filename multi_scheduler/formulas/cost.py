"""Cost of a pod on a node, and a score relative to other nodes. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from multi_scheduler.formulas.numbers import NEUTRAL

_GIB = 1024**3


Amount = Annotated[float, Meta(ge=0)]


class Price(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Price per hour, in any currency."""

    cpu: Amount = 0.0
    """Price of one CPU."""
    memory: Amount = 0.0
    """Price of one GiB."""


def hourly(requests: Mapping[str, int], price: Price, *, discount: float = 0.0) -> float:
    """Return the cost of a pod's requests per hour.

    Args:
        requests: CPU in millicores, memory in bytes.
        price: price of the node.
        discount: 0 to 1, for preemptible nodes.
    """
    whole = requests.get("cpu", 0) / 1000 * price.cpu + requests.get("memory", 0) / _GIB * price.memory
    return whole * (1 - discount)


def scores(costs: Mapping[str, float | None], ranks: Mapping[str, int] | None = None) -> dict[str, float]:
    """Return scores by node: 1 for the cheapest of the first rank. Every rank scores higher than all later ranks.

    Args:
        costs: cost by node; None: unknown, which gets the middle of the rank's scores.
        ranks: rank by node, 0 is first; nodes without a rank are last.
    """
    ranks = ranks or {}
    last = max(ranks.values(), default=-1) + 1
    of = {name: ranks.get(name, last) for name in costs}
    present = sorted(set(of.values()))
    cheapest: dict[int, float] = {}
    for name, cost in costs.items():
        if cost is not None:
            cheapest[of[name]] = min(cost, cheapest.get(of[name], cost))
    found = {}
    for name, cost in costs.items():
        within = NEUTRAL
        if cost is not None:
            # Even the most expensive node of a rank scores higher than later ranks.
            within = 0.01 + 0.99 * (cheapest[of[name]] / cost if cost > 0 else 1.0)
        found[name] = (len(present) - 1 - present.index(of[name]) + within) / len(present)
    return found
