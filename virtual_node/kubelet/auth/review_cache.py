"""Remembers a reviewer's answers for a while: one question in flight at a time, old answers when it is away."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controller_runtime.errors import ApiError, ServerTimeout, TooManyRequests, Unavailable

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    expires: float


class ReviewCache(Generic[K, V]):
    """Answers of TokenReviews or SubjectAccessReviews, by question.

    Args:
        ttl: Seconds an answer counts; 0 when it must not be kept.
        stale: Seconds an expired answer still serves while the reviewer does not answer. A cluster
            whose apiserver is away keeps its logs and its metrics readable for those who had access.
        timeout: Seconds the reviewer may take.
        size: How many answers are kept; the least recently asked goes first.
    """

    def __init__(
        self, ttl: Callable[[V], float], *, stale: float = 600.0, timeout: float = 10.0, size: int = 4096
    ) -> None:
        self._ttl = ttl
        self._stale = stale
        self._timeout = timeout
        self._size = size
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """Answer from memory or by asking. Cancelling one caller does not disturb others asking the same.

        Args:
            key: The question.
            ask: Asks the reviewer.

        Raises:
            ApiError: The reviewer failed and no answer is remembered.
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
        async with asyncio.timeout(self._timeout):
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
            task.exception()  # the callers have it; nobody may be left to fetch it

    async def close(self) -> None:
        """Cancel the questions under way."""
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
