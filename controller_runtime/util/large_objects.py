"""Runs work on large objects in a thread, so that other tasks of the event loop continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE = 256 * 1024
"""Bytes of JSON from which work runs in the thread. Below, translations of pods take less than 50 ms."""
_thread = ThreadPoolExecutor(1, thread_name_prefix="large-objects")
"""One thread, because each more would delay the event loop by another 5 ms per turn and need more memory."""


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
