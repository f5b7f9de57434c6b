"""Self-fencing: a worker that cannot renew its Lease stops its jobs before the controller assigns them to other workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_STOP_AFTER = 2 / 3
_RENEW_EVERY = 1 / 4
_LOOK = 0.2
"""Seconds between checks of the watchdog."""


class Times(NamedTuple):
    """Deadlines, on the clock of ``now``."""

    renew_at: float
    stop_at: float
    """At this time, the worker begins to stop all jobs."""
    exit_at: float
    """From this time on, no job may run; if one still runs, the process exits."""


def times(renewed_at: float, fence_seconds: float) -> Times:
    """Return the deadlines after a successful renewal.

    Args:
        renewed_at: when the last successful request was *sent*. The controller counts from its arrival, which is later.
        fence_seconds: fence time of the share.
    """
    return Times(
        renewed_at + _RENEW_EVERY * fence_seconds,
        renewed_at + _STOP_AFTER * fence_seconds,
        renewed_at + fence_seconds,
    )


def now() -> float:
    """Return seconds of a clock that continues while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Watchdog:
    """Ends the process at a deadline, even if a handler blocks the event loop."""

    def __init__(self, end: Callable[[], object]) -> None:
        """Create the watchdog. Its thread starts with the first deadline.

        Args:
            end: called in the thread; ends the process.
        """
        self._end = end
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.exit_at: float | None = None
        """The deadline (``now``); None: no deadline."""

    def arm(self, exit_at: float | None) -> None:
        """Set the deadline; None removes it."""
        self.exit_at = exit_at
        if exit_at is not None and self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="fence", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK):
            exit_at = self.exit_at
            if exit_at is not None and now() >= exit_at:
                self._end()
                return
