"""How many pods may be moved per pass: ``--max-pods-to-evict-per-node`` and its relatives."""

from __future__ import annotations

from collections import Counter

from descheduler.config.options import EvictionOptions


class PassLimits:
    """Counts moves; the counts start anew with every pass.

    Event-driven strategies have no passes of their own: for them one is as long as the descheduling interval.
    """

    def __init__(self, options: EvictionOptions) -> None:
        self._options = options
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._began = float("-inf")

    def take(self, node: str, namespace: str, *, now: float) -> float:
        """Take one move.

        Args:
            node: where the pod is now.
            namespace: the pod's.
            now: monotonic seconds.

        Returns:
            0 when it is granted; else the seconds until the next pass.
        """
        if now - self._began >= self._options.pass_seconds:
            self._began = now
            self._nodes.clear()
            self._namespaces.clear()
        limits = (
            (self._options.max_per_node, self._nodes[node]),
            (self._options.max_per_namespace, self._namespaces[namespace]),
            (self._options.max_total, self._nodes.total()),
        )
        if any(limit and used >= limit for limit, used in limits):
            return self._began + self._options.pass_seconds - now
        self._nodes[node] += 1
        self._namespaces[namespace] += 1
        return 0.0

    def give_back(self, node: str, namespace: str, *, taken: float) -> None:
        """A move that was granted did not take place.

        Args:
            node: as it was taken for.
            namespace: as it was taken for.
            taken: when; what an earlier pass granted is not a later one's.
        """
        if taken >= self._began:
            self._nodes[node] -= 1
            self._namespaces[namespace] -= 1
