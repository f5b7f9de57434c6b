"""An event loop whose clock is virtual and exact: it jumps to the next timer when nothing is ready.

What waits for a pause that rounds to nothing would never see the time pass: that is found out here, as is a program
in which nothing will ever happen again.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

_STANDSTILL = 60_000
"""Turns of the loop at one moment, after which somebody must be running in circles."""


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
