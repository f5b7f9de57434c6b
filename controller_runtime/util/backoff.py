"""How long a failing key waits: client-go's per-item rate limiters."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol


def exponential(failures: int, *, base: float, maximum: float) -> float:
    """Seconds to wait after some failures in a row: ``base * 2**failures``, at most ``maximum``.

    Args:
        failures: those before the last one; any number, for a loop may fail for days.
        base: seconds after the first.
        maximum: seconds.
    """
    # 2**63 seconds and 2**64 are the same answer; keep the power within what a float can say.
    return min(base * 2.0 ** min(failures, 63), maximum)


class RateLimiter(Protocol):
    """Says how long a key waits before its next attempt, and forgets keys that succeed."""

    def when(self, key: Hashable) -> float:
        """Seconds until the next attempt; counts one more failure."""

    def forget(self, key: Hashable) -> None:
        """The key succeeded, or is given up."""

    def num_requeues(self, key: Hashable) -> int:
        """Failures since the last ``forget``."""


class ExponentialBackoff:
    """``base * 2**failures`` seconds, at most ``maximum``; each key for itself."""

    def __init__(self, base: float = 0.005, maximum: float = 1000.0) -> None:
        self._base = base
        self._maximum = maximum
        self._failures: dict[Hashable, int] = {}

    def when(self, key: Hashable) -> float:
        """Seconds until the next attempt; counts one more failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return exponential(failures, base=self._base, maximum=self._maximum)

    def forget(self, key: Hashable) -> None:
        """The key succeeded, or is given up."""
        self._failures.pop(key, None)

    def num_requeues(self, key: Hashable) -> int:
        """Failures since the last ``forget``."""
        return self._failures.get(key, 0)


class FastSlow:
    """A few quick attempts, then slow ones."""

    def __init__(self, fast: float, slow: float, *, fast_attempts: int) -> None:
        self._fast = fast
        self._slow = slow
        self._fast_attempts = fast_attempts
        self._failures: dict[Hashable, int] = {}

    def when(self, key: Hashable) -> float:
        """Seconds until the next attempt; counts one more failure."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        return self._fast if failures <= self._fast_attempts else self._slow

    def forget(self, key: Hashable) -> None:
        """The key succeeded, or is given up."""
        self._failures.pop(key, None)

    def num_requeues(self, key: Hashable) -> int:
        """Failures since the last ``forget``."""
        return self._failures.get(key, 0)


class MaxOf:
    """The longest wait of several limiters."""

    def __init__(self, *limiters: RateLimiter) -> None:
        self._limiters = limiters

    def when(self, key: Hashable) -> float:
        """Seconds until the next attempt; counts one more failure in each limiter."""
        return max(limiter.when(key) for limiter in self._limiters)

    def forget(self, key: Hashable) -> None:
        """The key succeeded, or is given up."""
        for limiter in self._limiters:
            limiter.forget(key)

    def num_requeues(self, key: Hashable) -> int:
        """The most failures that any limiter knows of."""
        return max(limiter.num_requeues(key) for limiter in self._limiters)
