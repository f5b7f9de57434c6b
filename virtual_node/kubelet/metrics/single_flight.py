"""One answer for everybody who asks the same at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedAnswers(Generic[T]):
    """Remembers answers for a while, by question, and finds each of them out only once at a time.

    Args:
        fresh: Seconds an answer is good for. Failures are not remembered.
    """

    def __init__(self, *, fresh: float) -> None:
        self._fresh = fresh
        self._tasks: dict[str, asyncio.Task[T]] = {}

    async def get(self, question: str, find_out: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Answer a question. Cancelling one caller does not disturb the others.

        Args:
            question: Names what is asked.
            find_out: Finds the answer; whatever it raises, all who wait for it get.
        """
        task = self._tasks.get(question)
        if task is None:
            task = self._tasks[question] = asyncio.get_running_loop().create_task(find_out())
            task.add_done_callback(lambda done: self._answered(question, done))
        return await asyncio.shield(task)

    def _answered(self, question: str, task: asyncio.Task[T]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._tasks[question]
        else:
            task.get_loop().call_later(self._fresh, self._tasks.pop, question)
