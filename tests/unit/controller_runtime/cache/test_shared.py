"""Informers that several users share: one cache, own handlers and indexes, and a limit per namespace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.cache.shared import SharedInformers
from controller_runtime.client.collection import ObjectList
from controller_runtime.objects import Object, WatchEvent
from controller_runtime.store import is_stub
from tests.background import working
from tests.unit.controller_runtime.cache.conftest import Recorder, ScriptedServer, pod
from tests.unit.controller_runtime.cache.test_memory import large

pytestmark = pytest.mark.looptime


def _answer(server: ScriptedServer, live: list[Object]) -> list[str]:
    """Let lists of a single name return an object, and return the names that are read.

    Accounts may list and watch most objects that are cached, but not get them.
    """
    scripted, read = server.list, list[str]()

    async def answered(resource: Any, *, field_selector: str = "", **options: Any) -> ObjectList:
        if not field_selector:
            return await scripted(resource, **options)
        read.append(field_selector.removeprefix("metadata.name="))
        return ObjectList([found for found in live if found.name == read[-1]], "9")

    server.list = answered  # type: ignore[method-assign]
    return read


def user(shared: SharedInformers, server: Any, **options: Any) -> Informer:
    return shared.informer(server, resources.PODS, **options)


async def test_users_share_one_list_and_one_watch(server: ScriptedServer):
    server.lists = [([pod("a", 1), pod("b", 2)], "2")]
    shared = SharedInformers(server)  # type: ignore[arg-type]
    first, second = user(shared, server), user(shared, server)
    recorders = [Recorder(first), Recorder(second)]
    async with working(first.run()), working(second.run()):
        assert await first.wait_synced(5)
        assert await second.wait_synced(5)
        assert (server.listed, server.watched_from) == (1, ["2"])
        assert first.store is second.store
        feed = await server.watches.get()
        feed.put_nowait([WatchEvent("MODIFIED", pod("a", 3)), WatchEvent("DELETED", pod("b", 4))])
        for recorder in recorders:
            await recorder.until(lambda recorder=recorder: len(recorder.calls) == 4)  # type: ignore[misc]
            assert [call[:2] for call in recorder.calls] == [
                ("add", "a"), ("add", "b"), ("update", "a"), ("delete", "b"),
            ]  # fmt: skip


async def test_a_late_user_gets_cached_objects_once_and_after_run(server: ScriptedServer):
    """Handlers are registered while their owner is still being created, so nothing may be delivered before ``run``."""
    server.lists = [([pod("a", 1)], "1")]
    shared = SharedInformers(server)  # type: ignore[arg-type]
    first = user(shared, server)
    async with working(first.run()):
        await first.wait_synced(5)
        second = user(shared, server)
        recorder = Recorder(second)
        assert recorder.calls == []
        assert not second.has_synced
        async with working(second.run()):
            assert await second.wait_synced(5)
            assert recorder.calls == [("add", "a", "1", "True")]
            later = Recorder(second)
            assert later.calls == [("add", "a", "1", "True")]
        assert not second.has_synced
        assert first.has_synced


async def test_a_change_during_the_first_delivery_is_not_lost(server: ScriptedServer):
    """Every handler sees an add first, and the last state last."""
    server.lists = [([pod(f"p{number}", 1) for number in range(500)], "1")]
    shared = SharedInformers(server)  # type: ignore[arg-type]
    first = user(shared, server)
    async with working(first.run()):
        await first.wait_synced(5)
        feed = await server.watches.get()
        second = user(shared, server)
        recorder = Recorder(second)
        feed.put_nowait([WatchEvent("MODIFIED", pod("p499", 2)), WatchEvent("DELETED", pod("p498", 3))])
        async with working(second.run()):
            assert await second.wait_synced(5)
            await asyncio.sleep(1)
        by_name: dict[str, list[str]] = {}
        for call in recorder.calls:
            by_name.setdefault(call[1], []).append(call[0])
        assert by_name.pop("p498", ["add", "delete"]) == ["add", "delete"]
        assert by_name.pop("p499") in (["add"], ["add", "update"])
        assert set(map(tuple, by_name.values())) == {("add",)}
        assert second.store.get("ns/p499").resource_version == "2"  # type: ignore[union-attr]


async def test_the_cache_is_empty_while_nobody_uses_it(server: ScriptedServer):
    server.lists = [([pod("a", 1)], "1"), ([pod("b", 2)], "2")]
    shared = SharedInformers(server)  # type: ignore[arg-type]
    informer = user(shared, server)
    recorder = Recorder(informer)
    async with working(informer.run()):
        await informer.wait_synced(5)
    assert len(informer.store) == 0
    async with working(informer.run()):
        await informer.wait_synced(5)
        assert informer.store.keys() == ["ns/b"]
    assert [call[:2] for call in recorder.calls] == [("add", "a"), ("add", "b")]


async def test_each_user_has_indexes_until_it_ends(server: ScriptedServer):
    server.lists = [([pod("a", 1, node="n1")], "1")]
    shared = SharedInformers(server)  # type: ignore[arg-type]
    first = user(shared, server, indexers={"node": lambda found: (found.spec["nodeName"],)})
    second = user(
        shared, server,
        indexers={"node": lambda found: (found.spec["nodeName"],), "name": lambda found: (found.name,)},
    )  # fmt: skip
    async with working(first.run()):
        await first.wait_synced(5)
        async with working(second.run()):
            await second.wait_synced(5)
            assert [found.name for found in second.store.by_index("name", "a")] == ["a"]
        assert [found.name for found in first.store.by_index("node", "n1")] == ["a"]
        with pytest.raises(KeyError):
            first.store.by_index("name", "a")


async def test_objects_beyond_the_limit_of_a_namespace_are_stubs_until_there_is_room(server: ScriptedServer):
    """A tenant's objects do not fill the memory, and those of other namespaces are complete."""
    listed = [large(f"p{number}") for number in range(5)] + [large("q", namespace="quiet")]
    server.lists = [(listed, "1")]
    _answer(server, listed)
    shared = SharedInformers(server, bytes_per_namespace=35_000)  # type: ignore[arg-type]
    informer = user(shared, server)
    async with working(informer.run()):
        await informer.wait_synced(5)
        stubs = [found.name for found in informer.store.list() if is_stub(found)]
        assert stubs == ["p3", "p4"]
        assert (shared.stubs("ns"), shared.stubs("quiet")) == (2, 0)
        assert not is_stub(informer.store.get("quiet/q"))  # type: ignore[arg-type]
        feed = await server.watches.get()
        feed.put_nowait([WatchEvent("DELETED", large("p0", 3))])
        await asyncio.sleep(60)
        assert shared.stubs("ns") == 1
        feed.put_nowait([WatchEvent("DELETED", large("p1", 4))])
        await asyncio.sleep(60)
        assert shared.stubs("ns") == 0
        assert not any(is_stub(found) for found in informer.store.list())


async def test_only_as_many_stubs_are_read_as_there_is_room_for(server: ScriptedServer):
    """Otherwise the large objects of one namespace would be read again and again, and delay those of others."""
    listed = [large(f"p{number}") for number in range(20)]
    server.lists = [(listed, "1")]
    read = _answer(server, listed)
    shared = SharedInformers(server, bytes_per_namespace=35_000)  # type: ignore[arg-type]
    informer = user(shared, server)
    async with working(informer.run()):
        await informer.wait_synced(5)
        feed = await server.watches.get()
        feed.put_nowait([WatchEvent("DELETED", large("p0", 3))])
        await asyncio.sleep(120)
        assert read == ["p3"]


async def test_a_stub_that_was_deleted_is_not_read_again(server: ScriptedServer):
    server.lists = [([large("a"), large("b")], "1")]
    shared = SharedInformers(server, bytes_per_namespace=15_000)  # type: ignore[arg-type]
    informer = user(shared, server)
    async with working(informer.run()):
        await informer.wait_synced(5)
        assert shared.stubs("ns") == 1
        feed = await server.watches.get()
        feed.put_nowait([WatchEvent("DELETED", large("b", 2)), WatchEvent("DELETED", large("a", 3))])
        await asyncio.sleep(100)
        assert shared.stubs("ns") == 0
        assert len(informer.store) == 0
