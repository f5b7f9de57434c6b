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


async def until(check: Callable[[], Awaitable[T | None]], *, seconds: float) -> T | None:
    """Return the first result of ``check`` that is not None; None: there was none in time.

    A check that the API server did not answer is repeated, because a user should not have to run the command again after
    a short outage.

    Raises:
        ApiError: the server refused a request, or did not answer the last one.
    """
    deadline = event_loop.now() + seconds
    while True:
        unanswered = None
        try:
            if (result := await check()) is not None:
                return result
        except (Unavailable, TooManyRequests) as error:
            unanswered = error
        if event_loop.now() >= deadline:
            if unanswered is not None:
                raise unanswered
            return None
        await asyncio.sleep(_POLL)
