"""A watch as a client sees it: batches of changes, late or held back by the weather, bookmarks, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from controller_runtime.errors import ConnectionFailed
from controller_runtime.objects import WatchEvent, from_dict
from tests.unit.simulation.road import Road
from tests.unit.simulation.selecting import Chooses
from tests.unit.simulation.server import Server

_BOOKMARKS = 60.0
"""Seconds between two of them."""


class Watch:
    """One open watch."""

    def __init__(self, plural: str, name: str, seen: int) -> None:
        self.plural, self.name, self.seen = plural, name, seen
        self.wake = asyncio.Event()
        self.broken = False
        self.dirty = True
        """Something has changed since ``seen``."""

    def bookmark(self, version: int) -> None:
        """Where nothing has changed, the watch has seen all up to that version."""
        if not self.dirty:
            self.seen = version


async def follow(
    watch: Watch, server: Server, road: Road, chosen: Chooses
) -> AsyncIterator[list[WatchEvent]]:
    """What the watch brings until the server ends it.

    Raises:
        ConnectionFailed: it broke.
        Expired: what it has to begin with has been compacted.
    """
    loop, weather, chance = (
        asyncio.get_running_loop(),
        road.weather,
        road.chance(f"follow {watch.plural} {watch.name}"),
    )
    ends = loop.time() + chance.uniform(300, 600)

    def is_held() -> bool:
        return weather.silent or watch.plural in weather.held

    while True:
        await road.end_if_dead()
        watch.wake.clear()
        if loop.time() >= ends:
            return
        if weather.lag and chance.random() < 0.5:
            await asyncio.sleep(chance.random() * weather.lag)
        if watch.broken or weather.down:
            raise ConnectionFailed("the watch broke")
        if watch.dirty and not is_held():
            watch.dirty = False
            batch = list(server.since(watch.plural, watch.seen, chosen))
            watch.seen = server.version
            if batch:
                yield batch
                continue
        try:
            async with asyncio.timeout(_BOOKMARKS):
                await watch.wake.wait()
        except TimeoutError:
            if not is_held():
                watch.bookmark(server.version)
                mark = {"metadata": {"resourceVersion": str(watch.seen)}}
                yield [WatchEvent("BOOKMARK", from_dict(mark))]
