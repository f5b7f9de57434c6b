"""Informers of an unreachable server: their state meanwhile, and how soon they are current afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Batch
from controller_runtime.client.collection import ObjectList
from controller_runtime.client.limits import CacheBudget
from controller_runtime.client.transport import Outage
from controller_runtime.errors import ConnectionFailed, Expired, Forbidden, NotConnected
from controller_runtime.objects import from_dict

pytestmark = pytest.mark.looptime

REFUSED = NotConnected("refused")
RESET = ConnectionFailed("reset")
OLD = Expired("too old resource version", code=410)


class RestartedServer:
    """Refuses connections for a while; then it does not know earlier versions."""

    cluster = "test"

    def __init__(self) -> None:
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.caches = CacheBudget(0, cluster="test")
        self.down: Exception | None = None
        self.version = 1
        self.asked = 0
        self.ended = asyncio.Event()

    def stop(self) -> None:
        """End all watches and accept nothing more."""
        self.down = REFUSED
        self.ended.set()
        self.ended = asyncio.Event()

    def start(self) -> None:
        """Serve again, with a newer state."""
        self.down = None
        self.version += 1

    async def list(self, resource: Any, **selection: Any) -> ObjectList:
        """One pod of the current version."""
        await self._accept()
        version = str(self.version)
        metadata = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": version}
        return ObjectList([from_dict({"metadata": metadata})], version)

    async def watch_batches(
        self, resource: Any, *, resource_version: str, **options: Any
    ) -> AsyncGenerator[Batch, None]:
        """Send nothing until the server stops; too old a version is refused."""
        await self._accept()
        if resource_version != str(self.version):
            raise OLD
        yield []
        await self.ended.wait()
        if self.down:
            raise RESET

    async def _accept(self) -> None:
        self.asked += 1
        if self.down:
            raise self.down
        await asyncio.sleep(0.02)


class Followers:
    """Informers of a server, and the time when they saw the newer state."""

    def __init__(self, server: RestartedServer, *, size: int, is_minor: bool = False) -> None:
        self.moments: list[float] = []
        loop = asyncio.get_running_loop()
        self.informers = [
            Informer(server, resources.PODS, is_minor=is_minor)  # type: ignore[arg-type]
            for _ in range(size)
        ]
        for informer in self.informers:
            informer.add_handler(on_update=lambda _old, _new: self.moments.append(loop.time()))
        self.tasks = [asyncio.create_task(informer.run()) for informer in self.informers]

    async def stop(self) -> None:
        """End them."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.parametrize("outage", [3, 30, 300])
async def test_informers_are_current_soon_after_an_apiserver_restart(outage: int) -> None:
    """Twenty are current within three seconds after an outage of any length, and those of low priority after them."""
    server = RestartedServer()
    loop = asyncio.get_running_loop()
    informers = Followers(server, size=20)
    lesser = Followers(server, size=200, is_minor=True)
    await asyncio.sleep(200)
    server.stop()
    server.asked = 0
    await asyncio.sleep(outage)
    assert server.asked <= 20 + outage
    server.start()
    back = loop.time()
    await asyncio.sleep(60)
    await informers.stop()
    await lesser.stop()
    assert (len(informers.moments), len(lesser.moments)) == (20, 200)
    assert max(informers.moments) - back <= 3
    assert max(lesser.moments) - back <= 6


async def test_a_long_outage_is_logged_twice_by_each_of_many_informers() -> None:
    """The turns of two hundred are minutes apart; waiting in the queue does not count as time without failures."""
    server = RestartedServer()
    with capture_logs() as logs:
        followers = Followers(server, size=200)
        await asyncio.sleep(200)
        server.stop()
        await asyncio.sleep(1500)
        await followers.stop()
    told = [entry["for_seconds"] for entry in logs if entry["log_level"] == "warning"]
    assert (len(told), min(told) >= 5, sum(lasting >= 60 for lasting in told) >= 200) == (400, True, True)


async def test_a_new_outage_starts_its_own_back_off() -> None:
    """After two healthy minutes, even if the informer has to queue at once."""
    server = RestartedServer()
    with capture_logs() as logs:
        followers = Followers(server, size=2)
        for _ in range(2):
            await asyncio.sleep(200)
            server.stop()
            await asyncio.sleep(3)
            server.start()
        await asyncio.sleep(10)
        await followers.stop()
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


async def test_informers_without_a_cache_reconnect_first() -> None:
    """A pod waits for its Secret; cached informers can be current a little later."""
    server = RestartedServer()
    cached = Followers(server, size=500, is_minor=True)
    await asyncio.sleep(30)
    server.stop()
    await asyncio.sleep(30)
    fresh = Followers(server, size=1, is_minor=True)
    await asyncio.sleep(30)
    server.start()
    await fresh.informers[0].wait_synced()
    assert len(cached.moments) < 100
    await fresh.stop()
    await cached.stop()


async def test_refusal_shows_that_the_server_is_back() -> None:
    """A server that is back and returns 403 is reachable, so no other informer waits for it."""
    server = RestartedServer()
    server.outage.error = REFUSED
    server.down = Forbidden("no", code=403)
    followers = Followers(server, size=1)
    await asyncio.sleep(0.1)
    await followers.stop()
    assert server.outage.error is None


async def test_informer_that_starts_during_an_outage_has_its_reason() -> None:
    """Before its own first attempt."""
    server = RestartedServer()
    server.stop()
    others = Followers(server, size=50)
    await asyncio.sleep(100)
    late = Followers(server, size=1)
    await asyncio.sleep(0)
    assert late.informers[0].last_error is REFUSED
    await late.stop()
    await others.stop()


async def test_accepted_quiet_watch_ends_the_trouble() -> None:
    """An accepted watch is healthy, even without events for a minute."""
    server = RestartedServer()
    followers = Followers(server, size=1)
    await asyncio.sleep(1)
    server.stop()
    await asyncio.sleep(10)
    before = followers.informers[0].last_error
    server.down = None
    await asyncio.sleep(3)
    assert (before, followers.informers[0].last_error) == (REFUSED, None)
    await followers.stop()
