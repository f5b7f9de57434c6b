"""Growth of quotas by pods that the pod watch has not reported, so that no pod counts as used and as reserved. No IO.

A quota's ``status.used`` and the pod that it counts arrive by two watches, in either order. When a pod with reserved
room is seen, which means that the pod watch reports it, its charge is subtracted from the growth. The rest belongs to a
reserved pod that will be seen a moment later, or to an unrelated pod. The rest therefore counts for one second only;
the lower API server has the final decision.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

LAG_SECONDS = 1.0
"""Seconds that one watch may lag behind the other."""


class RecentlyCounted:
    """Recent growth of all quotas of a lower cluster, and pods that explain it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with no growth; ``clock`` returns monotonic seconds."""
        self._clock = clock
        self._changes: dict[tuple[str, str], deque[tuple[float, Counter[str]]]] = {}
        """By namespace and name of the quota: expiry and amounts of each change; the amounts of seen pods are negative."""

    def grown(self, namespace: str, quota: str, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Record the growth of a quota's ``used``."""
        growth = {name: after[name] - before[name] for name in before.keys() & after.keys()}
        self._add(namespace, quota, Counter({name: count for name, count in growth.items() if count > 0}))

    def seen(self, namespace: str, quota: str, usage: Mapping[str, int]) -> None:
        """Record the usage of a reserved pod that was seen; it explains a part of the growth."""
        self._add(namespace, quota, Counter({name: -count for name, count in usage.items()}))

    def forget(self, namespace: str, quota: str) -> None:
        """Drop the changes of a deleted quota."""
        self._changes.pop((namespace, quota), None)

    def unseen(self, namespace: str, quota: str) -> Counter[str]:
        """Return the quota's usage by pods that have not been seen, by resource; only counts above zero."""
        total: Counter[str] = Counter()
        for _, change in self._recent(namespace, quota):
            total.update(change)
        return +total

    def _add(self, namespace: str, quota: str, change: Counter[str]) -> None:
        if change:
            self._recent(namespace, quota)
            until = self._clock() + LAG_SECONDS
            self._changes.setdefault((namespace, quota), deque()).append((until, change))

    def _recent(self, namespace: str, quota: str) -> deque[tuple[float, Counter[str]]]:
        changes = self._changes.get((namespace, quota))
        if changes is None:
            return deque()
        while changes and changes[0][0] <= self._clock():
            changes.popleft()
        if not changes:
            del self._changes[namespace, quota]
        return changes
