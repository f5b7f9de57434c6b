"""A virtual node's usage as the sum over its lower nodes, with counters that never go backwards.

A sum of counters drops when a node leaves and jumps when one joins, and a reader takes either for usage. So a node
counts from when it was first seen: what it had used before is left out (but for the nodes of the first round, or the
counter would begin at 0, which metrics-server takes for no answer), what it used until it left stays in, and a counter
that starts anew (a reboot) goes on where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

_LEAST = 0.001
"""Where a counter begins at the least: whatever runs has used some."""


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
        """The sum now.

        Args:
            values: the counter by node; a node that is missing has left, or did not answer.
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
    """A counter out of rates, where the lower cluster tells only how fast something is used (metrics.k8s.io)."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def update(self, key: str, rate: float, *, at: float, window: float) -> float:
        """The counter of a key.

        It begins with what was used in the first sample's window, and never at 0: metrics-server takes a container
        at 0 for one that gave no answer, and drops its whole pod.

        Args:
            key: whose.
            rate: units per second, as of ``at``.
            at: Unix time of the sample, in seconds.
            window: seconds that the rate is the mean of.
        """
        total, before = self._known.get(key, (max(_LEAST, rate * window), at))
        total += rate * max(0.0, at - before)
        self._known[key] = (total, max(at, before))
        return total

    def keep(self, keys: Collection[str]) -> None:
        """Forget all others."""
        self._known = {key: value for key, value in self._known.items() if key in keys}
