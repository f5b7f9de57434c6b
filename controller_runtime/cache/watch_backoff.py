"""How long a broken list or watch waits: as client-go's reflector does where a server may suffer from us, else less.

client-go waits 0.8 s doubled up to 30 s after every failure, so that an informer comes back up to a minute after its
server did. Three kinds of trouble are told apart here, the last two with a ladder of their own:

- Nobody accepted the connection: no pause of its own. All who find that out stand in one line (``outage``).
- What we know is not what the server can go on from (410, or a version from the future), as after a restart: one
  list mends it, so the first is due at once. A server whose versions always expire is not listed in a loop.
- Everything else, an overloaded server first of all: client-go's pauses, and never less than Retry-After.
"""

from __future__ import annotations

import random

from controller_runtime.errors import ApiError, ConnectionFailed, Expired, NotConnected
from controller_runtime.util import backoff

_QUIET = 120.0
"""Seconds without trouble of a kind after which its ladder begins anew."""
_RESUME = 0.05
"""Seconds after the first break of a watch: many break for nothing more than a proxy's idle time."""
_SPREAD = 0.2
"""Seconds over which the lists of many informers begin that have all been told at once that history is missing."""


class WatchBackoff:
    """The pauses of one reflector.

    Attributes:
        attempts: failures in a row, of any kind.
        since: when the first of them was, in the loop's seconds.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.since = float("-inf")
        self._last = float("-inf")
        self._waits = False
        self._history = _Ladder(base=0.4, maximum=30.0)
        self._trouble = _Ladder(base=0.8, maximum=30.0)

    def begins(self, now: float) -> None:
        """An attempt begins, in the loop's seconds: pause and place in line since the last failure were no quiet."""
        if self._waits:
            self._waits, self._last = False, now

    def pause(self, error: Exception, *, now: float, is_watch: bool) -> float:
        """Seconds until the next attempt.

        Args:
            error: why the last one failed.
            now: the loop's seconds.
            is_watch: whether the next attempt is a watch rather than a list.
        """
        if now - self._last > _QUIET:
            self.attempts, self.since = 0, now
        self.attempts += 1
        self._last = now
        self._waits = True
        jitter = 1 + random.random()  # noqa: S311 - spreads those told the same
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


class _Ladder:
    """Doubling pauses that begin anew after quiet."""

    def __init__(self, *, base: float, maximum: float) -> None:
        self.failures = 0
        self._base = base
        self._maximum = maximum
        self._last = float("-inf")

    def step(self, now: float) -> float:
        """Count a failure; seconds to wait for it, jitter left out."""
        if now - self._last > _QUIET:
            self.failures = 0
        self._last = now
        self.failures += 1
        return backoff.exponential(self.failures - 1, base=self._base, maximum=self._maximum)


def is_history_missing(error: Exception) -> bool:
    """Whether the collection must be listed: what we know is not what the server goes on from."""
    return isinstance(error, Expired) or _is_from_the_future(error)


def _is_from_the_future(error: Exception) -> bool:
    """Whether the server has yet to reach our version, as one does that was restored from a backup."""
    details = error.status.get("details") if isinstance(error, ApiError) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes
    )
