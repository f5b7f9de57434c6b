"""A cache of review results. It sends one request per key at a time and uses expired results during an outage."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from controller_runtime.errors import ApiError, ServerTimeout, TooManyRequests, Unavailable
from virtual_node.kubelet.base.single_flight import SharedAnswers

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_TIMEOUT = 10.0
"""Seconds that a review may take."""


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
        self._entries: OrderedDict[K, tuple[V, float]] = OrderedDict()
        """Value and loop time of its expiry."""
        self._asking: SharedAnswers[K, V] = SharedAnswers(fresh=0)

    async def get(self, key: K, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the cached result or request a review; cancelling one caller does not affect the others.

        Args:
            key: The key of the result.
            ask: Requests the review.

        Raises:
            ApiError: The review failed, and no cached result may be used.
        """
        now = asyncio.get_running_loop().time()
        if known := self._entries.get(key):
            self._entries.move_to_end(key)
            value, expires = known
            if now < expires:
                return value
        try:
            return await self._asking.get(key, lambda: self._ask(key, ask))
        except (Unavailable, TooManyRequests, TimeoutError) as error:
            if known and now < expires + self._stale:
                return value
            if isinstance(error, ApiError):
                raise
            raise ServerTimeout("no answer in time", code=504, reason="Timeout") from error

    async def _ask(self, key: K, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        async with asyncio.timeout(_TIMEOUT):
            value = await ask()
        ttl = self._ttl(value)
        if ttl > 0:
            self._entries[key] = value, asyncio.get_running_loop().time() + ttl
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        else:
            self._entries.pop(key, None)
        return value

    async def close(self) -> None:
        """Cancel the reviews in progress."""
        await self._asking.close()
