"""Limits how often something happens: to each of many objects, and in all. No IO."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from controller_runtime.util.buffers import Recent

K = TypeVar("K", bound=Hashable)

BURST, QPS = 20, 0.2
"""Writes of one object at once, and per second in the long run, for objects that change a few times a day."""


class Pace(Generic[K]):
    """Token buckets by key, in the form of due times (generic cell rate algorithm); of the 4,096 latest keys.

    A write that is not allowed yet is delayed: its key is reconciled again, and then the latest state is written.

    Args:
        burst: writes at once.
        qps: writes per second in the long run.
    """

    def __init__(self, *, burst: int = BURST, qps: float = QPS) -> None:
        self._interval = 1 / qps
        self._ahead = (burst - 1) * self._interval
        self._due: Recent[K, float] = Recent()

    def wait(self, key: K, *, now: float) -> float:
        """Return for how many seconds a write has to wait; 0: not at all, and it counts as written."""
        due = self._due.touch(key) or 0.0
        if (ready := due - self._ahead) > now:
            return ready - now
        self._due[key] = max(due, now) + self._interval
        return 0.0


class Pacer:
    """Assigns times at a steady rate, in the order of the calls (generic cell rate algorithm)."""

    def __init__(self, rate: float, burst: int) -> None:
        """Set the rate.

        Args:
            rate: times per second.
            burst: number of calls that may get the same time.
        """
        self._step = 1 / rate
        self._slack = (burst - 1) * self._step
        self._next = 0.0

    def take(self, now: float, cost: float = 1.0) -> float:
        """Reserve the next free time, which is now or later, and return it; ``cost``: how many times it counts as."""
        due = max(now, self._next - self._slack)
        self._next = max(self._next, now) + cost * self._step
        return due

    def is_idle(self, now: float) -> bool:
        """Report whether the whole burst is available."""
        return self._next <= now
