"""Measures how long the event loop is blocked, and how busy its thread is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from prometheus_client import Histogram

from controller_runtime.process.lifecycle import beside

_STALLS = Histogram(
    "virtual_node_event_loop_stall_seconds",
    "Delay of an event loop timer in seconds, measured 20 times a second.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
_INTERVAL = 0.05
_WINDOW = 30.0
"""Seconds over which ``recent`` and ``busy`` are means."""
_recent = 0.0
_busy = 0.0


@contextlib.asynccontextmanager
async def measured() -> AsyncIterator[None]:
    """Measure the delay of event loop timers during the block; ``recent`` and ``busy`` are 0 afterwards."""
    global _recent, _busy
    try:
        async with beside(_measure()):
            yield
    finally:
        _recent = _busy = 0.0


def recent() -> float:
    """Return the mean delay of timers in seconds; delays of the last 30 s have most weight."""
    return _recent


def busy() -> float:
    """Return the CPU time of the loop's thread as a share of one core; the last 30 s have most weight."""
    return _busy


async def _measure() -> None:
    global _recent, _busy
    loop = asyncio.get_running_loop()
    while True:
        due, used = loop.time() + _INTERVAL, time.thread_time()
        await asyncio.sleep(_INTERVAL)
        delay = max(0.0, loop.time() - due)
        _STALLS.observe(delay)
        elapsed = _INTERVAL + delay
        weight = min(1.0, elapsed / _WINDOW)
        _recent += (delay - _recent) * weight
        _busy += ((time.thread_time() - used) / elapsed - _busy) * weight
