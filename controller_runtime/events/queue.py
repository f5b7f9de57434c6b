"""A bounded queue of Events to write: each once, by one worker at a time, Warnings first, and namespaces by turns."""

from __future__ import annotations

import asyncio

from controller_runtime.events.correlator import Series
from controller_runtime.util.fair_buffer import FairBuffer


class EventQueue:
    """Waiting Events.

    Args:
        capacity: maximum number of waiting Events. Above it, the oldest Normal Event is dropped, or the
            oldest Warning if there is no Normal Event, of the namespace with the most.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._warnings: FairBuffer[int, Series] = FairBuffer()
        self._normals: FairBuffer[int, Series] = FairBuffer()
        self._taken: set[int] = set()
        self._event = asyncio.Event()

    def __len__(self) -> int:
        return self._warnings.size + self._normals.size

    def put(self, series: Series) -> Series | None:
        """Add an Event unless it waits already; return the Event that was dropped for it, or None."""
        lane = self._warnings if series.body.get("type") == "Warning" else self._normals
        if lane.get(series.namespace, id(series)) is not None:
            return None
        lane.put(series.namespace, id(series), series)
        self.wake()
        if len(self) <= self._capacity:
            return None
        return (self._normals if self._normals.size else self._warnings).evict()

    def take(self) -> Series | None:
        """Remove and return the next Event that no other worker is writing; None if there is none."""
        for lane in (self._warnings, self._normals):
            series = lane.take(but=self._taken)
            if series is not None:
                self._taken.add(id(series))
                return series
        return None

    def done(self, series: Series) -> bool:
        """Mark an Event from ``take`` as written; report whether it was queued again meanwhile."""
        self._taken.discard(id(series))
        lanes = (self._warnings, self._normals)
        waits = any(lane.get(series.namespace, id(series)) is not None for lane in lanes)
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
