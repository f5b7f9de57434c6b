"""Measures the time that work takes, so that it can be charged to the tenant of a key."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
Charge = Callable[[float], None]
"""Charges seconds of work."""

_LEAST = 0.001
"""Seconds from which work is charged before it ends."""
_charge: ContextVar[Charge | None] = ContextVar("charge", default=None)
"""Charges the key that is reconciled in this context."""


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
