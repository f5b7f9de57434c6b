"""Helpers of the mover: record an event once per pod, and move one pod of an owner at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controller_runtime.events.recorder import EventRecorder, EventType
from controller_runtime.objects import Object

_REMEMBERED = 4096


class EventOnce:
    """Records an event once per pod and reason."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._recorded: OrderedDict[tuple[str, str], None] = OrderedDict()

    def record(self, pod: Object, type_: EventType, reason: str, message: str) -> bool:
        """Record an event and return True; return False if this pod had an event with this reason before."""
        key = (pod.uid, reason)
        if key in self._recorded:
            self._recorded.move_to_end(key)
            return False
        self._recorded[key] = None
        while len(self._recorded) > _REMEMBERED:
            self._recorded.popitem(last=False)
        self._recorder.event(pod, type_, reason, message)
        return True


class KeyedLock:
    """A lock per key, stored only while a task holds or awaits it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def holding(self, key: str) -> AsyncIterator[None]:
        """Hold the key's lock in the ``async with`` block."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
