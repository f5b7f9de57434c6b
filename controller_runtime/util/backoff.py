"""Delays of failing keys: client-go's per-item rate limiters."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol


def exponential(failures: int, *, base: float, maximum: float) -> float:
    """Return the seconds to wait after failures in a row: ``base * 2**failures``, at most ``maximum``.

    Args:
        failures: number before the last one; may be very large, because a loop may fail for days.
        base: seconds after the first failure.
        maximum: seconds.
    """
    # Limits the exponent so that the power fits into a float.
    return min(base * 2.0 ** min(failures, 63), maximum)


class RateLimiter(Protocol):
    """Returns how long a key waits before its next attempt, and forgets keys that succeed."""

    def when(self, key: Hashable) -> float:
        """Count a failure and return the seconds until the next attempt."""

    def forget(self, key: Hashable) -> None:
        """Reset the failures of a key that succeeded or was given up."""

    def num_requeues(self, key: Hashable) -> int:
        """Return the failures since the last ``forget``."""


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


class FastSlow:
    """A few fast attempts, then slow ones."""

    def __init__(self, fast: float, slow: float, *, fast_attempts: int) -> None:
        self._fast = fast
        self._slow = slow
        self._fast_attempts = fast_attempts
        self._failures: dict[Hashable, int] = {}

    def when(self, key: Hashable) -> float:
        """Count a failure and return the seconds until the next attempt."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        return self._fast if failures <= self._fast_attempts else self._slow

    def forget(self, key: Hashable) -> None:
        """Reset the failures of a key that succeeded or was given up."""
        self._failures.pop(key, None)

    def num_requeues(self, key: Hashable) -> int:
        """Return the failures since the last ``forget``."""
        return self._failures.get(key, 0)


class MaxOf:
    """The longest delay of several limiters."""

    def __init__(self, *limiters: RateLimiter) -> None:
        self._limiters = limiters

    def when(self, key: Hashable) -> float:
        """Count a failure in each limiter and return the longest delay in seconds."""
        return max(limiter.when(key) for limiter in self._limiters)

    def forget(self, key: Hashable) -> None:
        """Reset the failures of a key that succeeded or was given up."""
        for limiter in self._limiters:
            limiter.forget(key)

    def num_requeues(self, key: Hashable) -> int:
        """Return the most failures that any limiter has counted."""
        return max(limiter.num_requeues(key) for limiter in self._limiters)
