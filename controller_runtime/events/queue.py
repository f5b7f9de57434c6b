"""A bounded queue of Events to write: each once, by one worker at a time, Warnings first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from controller_runtime.events.correlator import Series


class EventQueue:
    """Waiting Events.

    Args:
        capacity: maximum number of waiting Events. Above it, the oldest Normal Event is dropped, or the
            oldest Warning if there is no Normal Event.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._warnings: OrderedDict[int, Series] = OrderedDict()
        self._normals: OrderedDict[int, Series] = OrderedDict()
        self._taken: set[int] = set()
        self._event = asyncio.Event()

    def __len__(self) -> int:
        return len(self._warnings) + len(self._normals)

    def put(self, series: Series) -> Series | None:
        """Add an Event unless it waits already; return the Event that was dropped for it, or None."""
        lane = self._warnings if series.body.get("type") == "Warning" else self._normals
        if id(series) in lane:
            return None
        lane[id(series)] = series
        self.wake()
        if len(self) <= self._capacity:
            return None
        return (self._normals or self._warnings).popitem(last=False)[1]

    def take(self) -> Series | None:
        """Remove and return the next Event that no other worker is writing; None if there is none."""
        for lane in (self._warnings, self._normals):
            for key in lane:
                if key not in self._taken:
                    self._taken.add(key)
                    return lane.pop(key)
        return None

    def done(self, series: Series) -> bool:
        """Mark an Event from ``take`` as written; report whether it was queued again meanwhile."""
        self._taken.discard(id(series))
        waits = id(series) in self._warnings or id(series) in self._normals
        if waits:
            self.wake()
        return waits

    def wake(self) -> None:
        """Wake all waiting workers."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until there may be an Event to take."""
        self._event.clear()
        await self._event.wait()
