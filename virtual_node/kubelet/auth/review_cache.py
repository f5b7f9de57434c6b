"""A cache of review results. It sends one request per key at a time and uses expired results during an outage."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controller_runtime.errors import ApiError, ServerTimeout, TooManyRequests, Unavailable

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_TIMEOUT = 10.0
"""Seconds that a review may take."""


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    expires: float


class ReviewCache(Generic[K, V]):
    """Results of TokenReviews or SubjectAccessReviews by key.

    Args:
        ttl: Returns the seconds for which a result is valid; 0: it is not cached.
        stale: Seconds for which an expired result is still used if the upper API server does not answer. So
            during an outage, logs and metrics stay readable for users who had access.
        size: Maximum number of cached results; the least recently used is dropped first.
    """

    def __init__(self, ttl: Callable[[V], float], *, stale: float = 600.0, size: int = 4096) -> None:
        self._ttl = ttl
        self._stale = stale
        self._size = size
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the cached result or request a review; cancelling one caller does not affect the others.

        Args:
            key: The key of the result.
            ask: Requests the review.

        Raises:
            ApiError: The review failed, and no cached result may be used.
        """
        now = asyncio.get_running_loop().time()
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            if now < entry.expires:
                return entry.value
        try:
            return await self._ask_once(key, ask)
        except (Unavailable, TooManyRequests, TimeoutError) as error:
            if entry is not None and now < entry.expires + self._stale:
                return entry.value
            if isinstance(error, ApiError):
                raise
            raise ServerTimeout("no answer in time", code=504, reason="Timeout") from error

    async def _ask_once(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        task = self._asking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(key, ask))
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(task)

    async def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        async with asyncio.timeout(_TIMEOUT):
            value = await ask()
        ttl = self._ttl(value)
        if ttl > 0:
            self._entries[key] = _Entry(value, asyncio.get_running_loop().time() + ttl)
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        else:
            self._entries.pop(key, None)
        return value

    def _asked(self, key: K, task: asyncio.Task[V]) -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # retrieved, because asyncio would log it if all callers were cancelled

    async def close(self) -> None:
        """Cancel the reviews in progress."""
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
