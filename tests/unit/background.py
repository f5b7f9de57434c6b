"""What runs while a test looks on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def working(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Have it run; leaving cancels it and waits for its end. What it fails with fails the test.

    Not a fixture: those live outside of virtual time.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
