"""Delays of failing keys: client-go's per-item rate limiters."""

from __future__ import annotations

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
