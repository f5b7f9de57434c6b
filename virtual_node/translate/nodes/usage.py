"""A virtual node's usage: the sum over its lower nodes, as counters that never decrease.

A plain sum of counters drops when a node leaves and jumps when a node joins, and readers would take both for
usage. So a node's counter is counted only from when the node was first seen. The usage before that is
included only for the nodes of the first round, because otherwise the sum would start at 0, which
metrics-server treats as missing. Usage of a node that left stays included. After a counter reset (a reboot)
the sum continues from its last value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

_LEAST = 0.001
"""Minimum start value of a counter, because metrics-server ignores a counter at 0."""


@dataclass(slots=True)
class _Counter:
    first: float
    last: float


class CounterSum:
    """The sum of one counter over a changing set of nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Counter] = {}
        self._past: float | None = None

    def update(self, values: Mapping[str, float]) -> float:
        """Update the counters and return the sum.

        Args:
            values: the counters by node. A node that is missing has left or did not answer.
        """
        past = sum(values.values()) if self._past is None else self._past
        for node in [node for node in self._nodes if node not in values]:
            gone = self._nodes.pop(node)
            past += gone.last - gone.first
        for node, value in values.items():
            known = self._nodes.get(node)
            if known is None:
                self._nodes[node] = _Counter(value, value)
            elif value < known.last:
                past += known.last - known.first
                self._nodes[node] = _Counter(0.0, value)
            else:
                known.last = value
        self._past = past if values or self._past is not None else None
        return past + sum(counter.last - counter.first for counter in self._nodes.values())


class RateIntegral:
    """Counters computed from usage rates, for lower clusters that report rates only (metrics.k8s.io)."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def update(self, key: str, rate: float, *, at: float, window: float) -> float:
        """Add a rate sample and return the counter of its key.

        The counter starts with the usage in the first sample's window, and never at 0, because metrics-server
        treats a container at 0 as missing and drops its whole pod.

        Args:
            key: the container or node that the rate belongs to.
            rate: units per second, as of ``at``.
            at: Unix time of the sample, in seconds.
            window: seconds over which the rate is averaged.
        """
        total, before = self._known.get(key, (max(_LEAST, rate * window), at))
        total += rate * max(0.0, at - before)
        self._known[key] = (total, max(at, before))
        return total

    def keep(self, keys: Collection[str]) -> None:
        """Remove all keys except these."""
        self._known = {key: value for key, value in self._known.items() if key in keys}
