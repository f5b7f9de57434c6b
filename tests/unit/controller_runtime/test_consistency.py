"""A key is not reconciled from a cache that is older than this process's last write for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from prometheus_client import REGISTRY

from controller_runtime import consistency, resources
from controller_runtime.objects import from_dict
from controller_runtime.store import Store
from controller_runtime.workqueue.controller import Controller
from tests import objects

pytestmark = pytest.mark.looptime


class _Cache:
    def __init__(self, version: str = "1") -> None:
        self.store, self.resource_version = Store(), version

    def expect(self, created: object) -> None:
        """Created objects do not matter here."""

    def show(self, version: int, uid: str = "u") -> None:
        """Deliver the pod in that version by the watch."""
        self.store.put("shop/web", from_dict(_pod(version, uid)))
        self.resource_version = str(version)


def _pod(version: int, uid: str = "u") -> dict[str, Any]:
    return objects.pod(uid=uid, metadata={"resourceVersion": str(version)})


class _Scene:
    """A controller that writes version 7 of a pod in its first reconciliation."""

    def __init__(self, name: str, *caches: _Cache) -> None:
        self.client = object()
        self.times: list[float] = []
        self._loop = asyncio.get_running_loop()
        self.begun = self._loop.time()
        self._following = contextlib.ExitStack()
        for cache in caches:
            self._following.enter_context(consistency.following(self.client, resources.PODS, cache))
        self.controller: Controller[str] = Controller(name, self._reconcile)

    async def _reconcile(self, _key: str) -> None:
        self.times.append(self._loop.time() - self.begun)
        if len(self.times) == 1:
            consistency.wrote(self.client, resources.PODS, _pod(7))

    async def run(self, seconds: float, at: dict[float, Any]) -> None:
        """Queue the key, again after a second, and run actions at their times."""
        task = asyncio.create_task(self.controller.run())
        self.controller.enqueue("a")
        await asyncio.sleep(1)
        self.controller.enqueue("a")
        for moment, action in at.items():
            await asyncio.sleep(moment - (self._loop.time() - self.begun))
            action()
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.end()

    def end(self) -> None:
        """End the caches."""
        self._following.close()


async def test_a_key_waits_until_the_cache_has_the_last_write():
    """An older state meanwhile does not suffice; other caches of the resource may be behind. The wait is counted."""
    cache, other = _Cache(), _Cache()
    cache.show(3)
    scene = _Scene("waiting", cache, other)
    await scene.run(5, {2.5: lambda: cache.show(6), 5.5: lambda: cache.show(7)})
    assert scene.times == [0, 6]
    labels = {"name": "waiting"}
    assert REGISTRY.get_sample_value("virtual_node_stale_sync_skips_total", labels) == 5


async def test_a_key_does_not_wait_for_a_stub_when_the_cache_has_read_the_write():
    """A stub has no version. The cache keeps it for an object for which its namespace has no room."""
    cache = _Cache()
    scene = _Scene("stub", cache)
    body = _pod(1)
    del body["metadata"]["resourceVersion"]

    def show() -> None:
        cache.store.put("shop/web", from_dict(body))
        cache.resource_version = "7"

    cache.store.put("shop/web", from_dict(body))
    await scene.run(5, {3.5: show})
    assert len(scene.times) == 2
    assert 3.5 <= scene.times[1] < 6


async def test_a_key_does_not_wait_for_a_passed_write():
    """The object was deleted, or left the selection: it is not in the cache, which has read that version."""
    cache = _Cache(version="9")
    scene = _Scene("passed", cache)
    await scene.run(1, {})
    assert scene.times == [0, 1]


async def test_a_key_does_not_wait_for_a_resource_without_a_cache():
    scene = _Scene("unfollowed")
    await scene.run(1, {})
    assert scene.times == [0, 1]


async def test_a_key_waits_for_a_stuck_watch_for_half_a_minute_only():
    """The server may have been restored from a backup and never reach that version."""
    cache = _Cache()
    cache.show(3)
    scene = _Scene("held", cache)
    await scene.run(60, {})
    assert scene.times == [0, 30]


async def test_a_key_does_not_wait_for_an_ended_cache():
    """A lower cluster was restarted inside the process."""
    cache = _Cache()
    cache.show(3)
    scene = _Scene("ended", cache)
    await scene.run(10, {3.5: scene.end})
    assert scene.times == [0, 4]


async def test_writes_that_no_key_waits_for_are_forgotten():
    """A key that is not reconciled again keeps its last writes for half a minute, not for ever."""
    cache, client = _Cache(), object()
    writes: consistency.OwnWrites[int] = consistency.OwnWrites("many")
    with consistency.following(client, resources.PODS, cache):
        for key in range(100):
            with writes.noting(key):
                consistency.wrote(client, resources.PODS, _pod(7))
            await asyncio.sleep(1)
        assert len(writes._writes) == 30
        assert [writes.must_wait(key) for key in range(100)] == [False] * 71 + [True] * 29
