"""Limits the number of moves per pass: ``--max-pods-to-evict-per-node`` and the limits of the policy file."""

from __future__ import annotations

from collections import Counter

from descheduler.config.eviction import EvictionOptions


class PassLimits:
    """Counts moves; every pass begins at 0.

    A pass is as long as the descheduling interval, or 60 s without an interval, also for event-driven
    strategies.
    """

    def __init__(self, options: EvictionOptions) -> None:
        self._options = options
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._began = float("-inf")

    def take(self, node: str, namespace: str, *, now: float) -> float:
        """Count a move if the limits allow it.

        Args:
            node: virtual node of the pod.
            namespace: namespace of the pod.
            now: monotonic seconds.

        Returns:
            0 if the move is allowed; otherwise the seconds until the next pass.
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
        """Undo ``take`` for a move that did not take place.

        Args:
            node: the argument of ``take``.
            namespace: the argument of ``take``.
            taken: argument ``now`` of ``take``. Nothing changes if that pass is over.
        """
        if taken >= self._began:
            self._nodes[node] -= 1
            self._namespaces[namespace] -= 1
