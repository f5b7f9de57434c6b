"""Delays after a failed list or watch: client-go's if the server may be overloaded, otherwise shorter.

client-go waits 0.8 s, doubled up to 30 s after every failure, so an informer recovers up to a minute after
its server. Here three kinds of failures are distinguished, the last two with a back-off of their own:

- No connection: no delay here, because these watches queue (``reconnect_queue``).
- The server cannot continue from our version (410, or a version from the future), as after a restart. One
  list solves this, so the first list is sent within 0.2 s. Later lists are delayed, so that a server with
  versions that always expire is not listed in a loop.
- Everything else, such as an overloaded server: client-go's delays, and never less than Retry-After.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from controller_runtime.errors import ApiError, ConnectionFailed, Expired, NotConnected
from controller_runtime.util import backoff

_QUIET = 120.0
"""Seconds without a failure of a kind after which its back-off restarts."""
_RESUME = 0.05
"""Seconds to wait after the first break of a watch; most breaks are only a proxy's idle timeout."""
_SPREAD = 0.2
"""Seconds over which the lists of many informers are spread if history is missing for all at the same time."""


class WatchBackoff:
    """The delays of one reflector.

    Attributes:
        attempts: failures in a row, of any kind.
        since: time of the first of these failures, in the loop's seconds.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.since = float("-inf")
        self._last = float("-inf")
        self._waits = False
        self._history = _Ladder(base=0.4, maximum=30.0)
        self._trouble = _Ladder(base=0.8, maximum=30.0)

    def begins(self, now: float) -> None:
        """Record the start of an attempt; time spent waiting does not count as time without failures."""
        if self._waits:
            self._waits, self._last = False, now

    def pause(self, error: Exception, *, now: float, is_watch: bool) -> float:
        """Return the seconds until the next attempt.

        Args:
            error: why the last attempt failed.
            now: the loop's seconds.
            is_watch: whether the next attempt is a watch rather than a list.
        """
        if now - self._last > _QUIET:
            self.attempts, self.since = 0, now
        self.attempts += 1
        self._last = now
        self._waits = True
        jitter = 1 + random.random()  # noqa: S311 - spreads clients that failed at the same time
        if is_history_missing(error):
            steps = self._history.step(now)
            return steps * jitter if self._history.failures > 1 else _SPREAD * (jitter - 1)
        if isinstance(error, NotConnected):
            return 0.0
        pause = self._trouble.step(now)
        if is_watch and isinstance(error, ConnectionFailed) and self._trouble.failures == 1:
            pause = _RESUME
        asked = error.retry_after if isinstance(error, ApiError) else None
        return max(pause, asked or 0.0) * jitter


@dataclass(slots=True, kw_only=True)
class _Ladder:
    """Doubling delays that restart after a time without failures."""

    base: float
    maximum: float
    failures: int = 0
    last: float = float("-inf")

    def step(self, now: float) -> float:
        """Count a failure and return the seconds to wait, without jitter."""
        if now - self.last > _QUIET:
            self.failures = 0
        self.last = now
        self.failures += 1
        return backoff.exponential(self.failures - 1, base=self.base, maximum=self.maximum)


def is_history_missing(error: Exception) -> bool:
    """Report whether the collection must be listed, because the server cannot continue from our version."""
    return isinstance(error, Expired) or _is_from_the_future(error)


def _is_from_the_future(error: Exception) -> bool:
    """Report whether the server has not reached our version yet, as after a restore from a backup."""
    details = error.status.get("details") if isinstance(error, ApiError) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes
    )
