"""A watch as a client sees it: batches of changes, late or held back by the weather, bookmarks, and its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from controller_runtime.errors import ConnectionFailed
from controller_runtime.objects import WatchEvent
from tests.fakes.apiserver.client import bookmark
from tests.fakes.apiserver.selectors import Matches
from tests.fakes.apiserver.server import Server
from tests.unit.simulation.network import Road

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


async def follow(
    watch: Watch, server: Server, road: Road, chosen: Matches
) -> AsyncIterator[list[WatchEvent]]:
    """What the watch brings until the server ends it.

    Raises:
        ConnectionFailed: it broke.
        Expired: what it has to begin with has been compacted.
    """
    loop, weather = asyncio.get_running_loop(), road.weather
    chance = road.chance(f"follow {watch.plural} {watch.name}")
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
            until = max(watch.seen, server.version - weather.behind)
            batch = list(server.since(watch.plural, watch.seen, chosen, until=until))
            watch.seen, watch.dirty = until, until < server.version
            if batch and weather.disorder:
                batch = _disordered(batch, weather.disorder, chance)
                half = chance.randint(1, len(batch))
                yield batch[:half]
                await asyncio.sleep(chance.random())
                await road.end_if_dead()
                yield [*batch[half:], bookmark(until)]  # a watch that is resumed must not go back
                continue
            if batch:
                yield batch
                continue
        try:
            async with asyncio.timeout(_BOOKMARKS):
                await watch.wake.wait()
        except TimeoutError:
            if not is_held():
                if not watch.dirty:
                    watch.seen = server.version
                yield [bookmark(watch.seen)]


def _disordered(batch: list[WatchEvent], share: float, chance: random.Random) -> list[WatchEvent]:
    """Repeat a share of the events and mix those of different objects; those of one object keep their order."""
    left: dict[str, list[WatchEvent]] = {}
    for event in batch:
        left.setdefault(event.object.key, []).extend([event] * (2 if chance.random() < share else 1))
    mixed = []
    while left:
        key = chance.choice(list(left))
        mixed.append(left[key].pop(0))
        if not left[key]:
            del left[key]
    return mixed
