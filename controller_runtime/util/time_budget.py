"""A limit on the processing time of each tenant, so that the time left for others does not depend on one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_REMEMBERED = 1000


@dataclass(eq=False)
class TimeBudget:
    """Counts the seconds that work took by name, such as a namespace. Each name has its own budget.

    A full budget allows ``most`` seconds at once. It grows by ``share`` of each second until it is full again, so in
    the long run a name uses at most this share of one CPU. Work is counted after it was done, so a budget can be
    negative.
    """

    most: float
    """Seconds of a full budget."""
    share: float
    """Seconds by which a budget grows each second."""
    clock: Callable[[], float] = time.monotonic
    _full_at: dict[str, float] = field(default_factory=dict)
    """By name: time of the clock when its budget is full again."""
    _prune_at: int = _REMEMBERED

    def left(self, name: str) -> float:
        """Return the seconds left now; negative if more was used."""
        full_at = self._full_at.get(name)
        return self.most if full_at is None else self.most - self.share * max(0.0, full_at - self.clock())

    def wait(self, name: str) -> float:
        """Return after how many seconds something is left; 0: now."""
        full_at = self._full_at.get(name)
        return 0.0 if full_at is None else max(0.0, full_at - self.clock() - self.most / self.share)

    def spend(self, name: str, seconds: float) -> None:
        """Subtract the time that work took."""
        now = self.clock()
        if len(self._full_at) >= self._prune_at:
            self._full_at = {other: at for other, at in self._full_at.items() if at > now}
            self._prune_at = max(_REMEMBERED, 2 * len(self._full_at))
        self._full_at[name] = max(now, self._full_at.get(name, 0.0)) + seconds / self.share
