"""Waits of ``lower-cluster`` commands for a state of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from controller_runtime.errors import TooManyRequests, Unavailable
from controller_runtime.util import event_loop

T = TypeVar("T")
_POLL = 0.5
"""Seconds between two checks."""


async def until(check: Callable[[], Awaitable[T]], *, seconds: float, every: float = _POLL) -> T:
    """Return the first true result of ``check``, or the last result if there was none in time.

    A check that the API server did not answer is repeated, because a user should not have to run the command again after
    a short outage.

    Raises:
        ApiError: the server refused a request, or did not answer the last one.
    """
    deadline = event_loop.now() + seconds
    while True:
        try:
            result = await check()
        except (Unavailable, TooManyRequests):
            if event_loop.now() >= deadline:
                raise
        else:
            if result or event_loop.now() >= deadline:
                return result
        await asyncio.sleep(every)
