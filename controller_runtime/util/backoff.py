"""Delays of failing keys, as client-go's per-item rate limiters, and of restarts."""

from __future__ import annotations

import random
from collections.abc import Hashable


def exponential(failures: int, *, base: float, maximum: float) -> float:
    """Return the seconds to wait after failures in a row: ``base * 2**failures``, at most ``maximum``.

    Args:
        failures: number of failures before the last one; may be large, because a loop may fail for days.
        base: seconds after the first failure.
        maximum: longest delay in seconds.
    """
    # The exponent is limited so that the power fits into a float.
    return min(base * 2.0 ** min(failures, 63), maximum)


class ExponentialBackoff:
    """Delays of ``base * 2**failures`` seconds, at most ``maximum``, for each key."""

    def __init__(self, base: float = 0.005, maximum: float = 1000.0) -> None:
        self._base = base
        self._maximum = maximum
        self._failures: dict[Hashable, int] = {}

    def when(self, key: Hashable) -> float:
        """Count a failure and return the seconds until the next attempt."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return exponential(failures, base=self._base, maximum=self._maximum)

    def forget(self, key: Hashable) -> None:
        """Reset the failures of a key that succeeded or was given up."""
        self._failures.pop(key, None)

    def num_requeues(self, key: Hashable) -> int:
        """Return the failures since the last ``forget``."""
        return self._failures.get(key, 0)


class Restarts:
    """Delays before restarts of something that ends although it should not: 1 s, doubled each time, at most 60 s."""

    BASE, MAXIMUM = 1.0, 60.0
    STEADY = 120.0
    """Seconds; after a run that was longer, earlier failures no longer count."""

    def __init__(self) -> None:
        self._failures = 0

    def delay(self, ran: float) -> float:
        """Count an end after ``ran`` seconds; return the seconds until the restart, with up to a quarter of jitter."""
        self._failures = 1 if ran > self.STEADY else self._failures + 1
        delay = exponential(self._failures - 1, base=self.BASE, maximum=self.MAXIMUM)
        return delay * (1 + random.random() / 4)  # noqa: S311 - jitter
