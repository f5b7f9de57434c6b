"""An event loop whose clock is virtual and exact: it jumps to the next timer when nothing is ready.

``datetime.now`` gives the virtual time, too, so that a story has the same timestamps in every run.
What waits for a pause that rounds to nothing would never see the time pass: that is found out here, as is a program
in which nothing will ever happen again.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from unittest import mock

_STANDSTILL = 60_000
"""Turns of the loop at one moment, after which somebody must be running in circles."""
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Wall-clock time at loop time 0."""
_PACKAGES = ("virtual_node.", "controller_runtime.")
skew: ContextVar[float] = ContextVar("skew", default=0.0)
"""Seconds by which the current process' wall clock is ahead. Tasks inherit it from the task that starts them."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use it as any loop; nothing in it may wait for the outside world."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Seconds since an arbitrary beginning."""
        return self.now


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing will ever happen")
        self._turns = 0 if timeout else self._turns + 1
        if self._turns > _STANDSTILL:
            raise RuntimeError("time stands still: somebody waits for no time in a loop")
        self._loop.now += timeout
        return []


class _VirtualDatetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Return the virtual time of the running event loop, plus the process' skew."""
        seconds = asyncio.get_running_loop().time() + skew.get()
        return (_EPOCH + timedelta(seconds=seconds)).astimezone(tz)


@contextlib.contextmanager
def virtual_wall_clock() -> Iterator[None]:
    """Replace ``datetime`` in every loaded module of the product for the duration of the context."""
    with contextlib.ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith(_PACKAGES) and getattr(module, "datetime", None) is datetime:
                stack.enter_context(mock.patch.object(module, "datetime", _VirtualDatetime))
        yield
