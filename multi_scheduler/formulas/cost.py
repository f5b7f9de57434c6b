"""What a pod costs on a node, and how good that is among the prices of others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Price:
    """Per hour, in any currency."""

    cpu: float = 0.0
    """Of one CPU."""
    memory: float = 0.0
    """Of one GiB."""


def hourly(requests: Mapping[str, int], price: Price, *, discount: float = 0.0) -> float:
    """Return what a pod's requests cost in an hour.

    Args:
        requests: CPU in thousandths, memory in bytes.
        price: of the node.
        discount: 0 to 1, of preemptible nodes.
    """
    whole = requests.get("cpu", 0) / 1000 * price.cpu + requests.get("memory", 0) / _GIB * price.memory
    return whole * (1 - discount)


def scores(costs: Mapping[str, float], ranks: Mapping[str, int] | None = None) -> dict[str, float]:
    """Return 1 for the cheapest of the first rank; every node of a rank is better than all of later ranks.

    Args:
        costs: by node.
        ranks: 0 is the first; nodes without one are of the last.
    """
    ranks = ranks or {}
    last = max(ranks.values(), default=-1) + 1
    of = {name: ranks.get(name, last) for name in costs}
    present = sorted(set(of.values()))
    cheapest = {rank: min(cost for name, cost in costs.items() if of[name] == rank) for rank in present}
    found = {}
    for name, cost in costs.items():
        relative = cheapest[of[name]] / cost if cost > 0 else 1.0
        # Even the dearest of a rank is better than what comes after it.
        found[name] = (len(present) - 1 - present.index(of[name]) + 0.01 + 0.99 * relative) / len(present)
    return found
