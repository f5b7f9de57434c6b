"""Work that must not run twice at the same time for one key: locks, and shared results of concurrent calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class KeyedLocks(Generic[K]):
    """Locks by key. A lock exists only while a task holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: K) -> asyncio.Lock:
        """Return the lock of a key, for ``async with``."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


class SharedAnswers(Generic[K, T]):
    """Caches results by key for a short time, and computes the result of a key only once at a time.

    Args:
        fresh: Seconds for which a result is reused. Errors are not cached.
    """

    def __init__(self, *, fresh: float) -> None:
        self._fresh = fresh
        self._tasks: dict[K, asyncio.Task[T]] = {}

    async def get(self, question: K, find_out: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return a cached or computed result. Cancelling one caller does not affect the others.

        Args:
            question: Key of the result.
            find_out: Computes the result. If it raises an exception, all waiting callers get the exception.
        """
        task = self._tasks.get(question)
        if task is None:
            task = self._tasks[question] = asyncio.get_running_loop().create_task(find_out())
            task.add_done_callback(lambda done: self._answered(question, done))
        return await asyncio.shield(task)

    def _answered(self, question: K, task: asyncio.Task[T]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._tasks[question]
        else:
            task.get_loop().call_later(self._fresh, self._tasks.pop, question)

    async def close(self) -> None:
        """Cancel the computations in progress."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
