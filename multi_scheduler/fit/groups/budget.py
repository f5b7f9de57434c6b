"""Limits the time for planning groups of a namespace without a result, because all calls wait for it. No IO."""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST_SECONDS = 2.0
"""Seconds of planning without a result that a namespace may use at once."""
_SHARE = 0.1
"""Part of the time that a namespace may use permanently."""
_REMEMBERED = 1000


class PlanningBudget:
    """The remaining planning time of each namespace.

    Args:
        cpu: CPU seconds of this thread; unlike wall time, other programs on the machine do not affect them.
        clock: monotonic seconds.
    """

    def __init__(
        self, cpu: Callable[[], float] = time.thread_time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cpu = cpu
        self._clock = clock
        self._full_at: dict[str, float] = {}
        """By namespace: monotonic time when its budget is full again."""

    def left(self, namespace: str) -> float:
        """Return the CPU seconds left now to plan groups of a namespace."""
        missing = self._full_at.get(namespace, 0.0) - self._clock()
        return _MOST_SECONDS - _SHARE * max(0.0, missing)

    def spend(self, namespace: str, seconds: float) -> None:
        """Subtract CPU time in which a group was planned without a result."""
        now = self._clock()
        if len(self._full_at) > _REMEMBERED:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        self._full_at[namespace] = max(now, self._full_at.get(namespace, 0.0)) + seconds / _SHARE
