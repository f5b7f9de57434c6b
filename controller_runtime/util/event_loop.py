"""The event loop: its clock, waiting by it, and long work that does not block it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_SLICE = 0.005
"""Seconds of work after which other tasks get a turn."""
T = TypeVar("T")
LARGE = 256 * 1024
"""Bytes of JSON from which work runs in the thread. Below, translations of pods take less than 50 ms."""
_thread = ThreadPoolExecutor(1, thread_name_prefix="large-objects")
"""One thread, because each more would delay the event loop by another 5 ms per turn and need more memory."""


def now() -> float:
    """Return the seconds of the event loop's clock, which never goes back."""
    return asyncio.get_running_loop().time()


async def wait(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set, at most some seconds, None: without limit; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class Slicer:
    """Yields to the event loop every 5 ms; call ``tick`` after each small piece of work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    async def tick(self) -> None:
        """Yield to other tasks if the time slice is used up."""
        if self._loop.time() - self._since > _SLICE:
            await asyncio.sleep(0)
            self._since = self._loop.time()


async def run_apart(function: Callable[[], T], *, size: int) -> T:
    """Return the function's result; it runs in a thread if the object is large.

    Args:
        function: neither does IO nor changes objects that others use. If the caller is cancelled, a started function
            runs to its end.
        size: bytes of the objects that the function reads, as JSON.
    """
    if size < LARGE:
        return function()
    return await asyncio.get_running_loop().run_in_executor(_thread, function)
