"""Self-fencing: a worker that cannot prove that it lives stops its jobs before the controller gives them away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_STOP_AFTER = 2 / 3
_RENEW_EVERY = 1 / 4
_LOOK = 0.2
"""Seconds between two looks of the watchdog."""


class Times(NamedTuple):
    """What must be done when, on the clock of ``now``."""

    renew_at: float
    stop_at: float
    """All jobs are being stopped from here on."""
    exit_at: float
    """No job runs any more from here on; if one does, the process ends."""


def times(renewed_at: float, fence_seconds: float) -> Times:
    """The times after a successful renewal.

    Args:
        renewed_at: when the last request that succeeded was *sent*. The controller counts from when it arrived, later.
        fence_seconds: of the share.
    """
    return Times(
        renewed_at + _RENEW_EVERY * fence_seconds,
        renewed_at + _STOP_AFTER * fence_seconds,
        renewed_at + fence_seconds,
    )


def now() -> float:
    """Seconds of a clock that goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Watchdog:
    """Ends the process at a time, also when a handler blocks the event loop."""

    def __init__(self, end: Callable[[], object]) -> None:
        """Set up.

        Args:
            end: called in a thread; ends the process.
        """
        self._end = end
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.exit_at: float | None = None
        """When to end; None: never."""

    def arm(self, exit_at: float | None) -> None:
        """Set when to end; None: never."""
        self.exit_at = exit_at
        if exit_at is not None and self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="fence", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK):
            exit_at = self.exit_at
            if exit_at is not None and now() >= exit_at:
                self._end()
                return
