"""Measures the time that work takes, charges it to the tenant of a key, and limits it by tenant."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
Charge = Callable[[float], None]
"""Charges seconds of work."""
_LEAST = 0.001
"""Minimum seconds of running work that are charged before the work has ended."""
_charge: ContextVar[Charge | None] = ContextVar("charge", default=None)
"""Charges the key that is reconciled in this context."""
_REMEMBERED = 1000


@types.coroutine
def charged(work: Awaitable[T], charge: Charge) -> Generator[Any, Any, T]:
    """Await ``work`` and charge the time for which it occupies the event loop, without the time in which it waits.

    The wall clock is used, because blocking the loop without using the CPU delays others, too.
    """
    before = _charge.get()
    _charge.set(charge)
    steps = work.__await__()
    advance: Callable[[Any], Any] = steps.send
    value: Any = None
    seconds = 0.0
    try:
        while True:
            started = time.perf_counter()
            try:
                awaited = advance(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return] # the result of ``work``
            finally:
                seconds += time.perf_counter() - started
            if seconds >= _LEAST:
                charge(seconds)
                seconds = 0.0
            try:
                value = yield awaited
                advance = steps.send
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001 - ``work`` must handle it, as without the measurement
                value, advance = error, steps.throw
    finally:
        _charge.set(before)
        charge(seconds)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread; its CPU time is charged to the key that is reconciled in this context.

    A thread competes with the event loop for the interpreter.
    """
    seconds = 0.0

    def timed() -> T:
        nonlocal seconds
        started = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds = time.thread_time() - started

    try:
        return await asyncio.to_thread(timed)
    finally:
        if (charge := _charge.get()) is not None:
            charge(seconds)


@dataclass(eq=False)
class TimeBudget:
    """Counts the seconds that work took by name, such as a namespace, so that the time left for others does not depend on it.

    A full budget allows ``most`` seconds at once. It grows by ``share`` of each second until it is full again, so in
    the long run a name uses at most this share of one CPU. Work is counted after it was done, so a budget can be
    negative.
    """

    most: float
    """Seconds of a full budget."""
    share: float
    """Seconds by which a budget grows each second."""
    clock: Callable[[], float] = time.monotonic
    _full_at: dict[str, float] = field(default_factory=dict)
    """By name: time of the clock when its budget is full again."""
    _prune_at: int = _REMEMBERED

    def left(self, name: str) -> float:
        """Return the seconds left now; negative if more was used."""
        full_at = self._full_at.get(name)
        return self.most if full_at is None else self.most - self.share * max(0.0, full_at - self.clock())

    def wait(self, name: str) -> float:
        """Return after how many seconds something is left; 0: now."""
        full_at = self._full_at.get(name)
        return 0.0 if full_at is None else max(0.0, full_at - self.clock() - self.most / self.share)

    def spend(self, name: str, seconds: float) -> None:
        """Subtract the time that work took."""
        now = self.clock()
        if len(self._full_at) >= self._prune_at:
            self._full_at = {other: at for other, at in self._full_at.items() if at > now}
            self._prune_at = max(_REMEMBERED, 2 * len(self._full_at))
        self._full_at[name] = max(now, self._full_at.get(name, 0.0)) + seconds / self.share
