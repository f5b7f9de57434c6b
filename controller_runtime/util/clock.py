"""The event loop's clock, and waiting by it."""

from __future__ import annotations

import asyncio
import contextlib


def now() -> float:
    """Return the seconds of the event loop's clock, which never goes back."""
    return asyncio.get_running_loop().time()


async def wait(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set, at most some seconds, None: without limit; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
