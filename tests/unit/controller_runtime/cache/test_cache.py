"""The informer's cache is the result of one list and its watch."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controller_runtime.errors import ConnectionFailed
from controller_runtime.objects import Object, WatchEvent
from tests.background import working
from tests.unit.controller_runtime.cache.conftest import Recorder, make, pod

pytestmark = pytest.mark.looptime


async def test_one_list_then_one_watch_from_its_version(server, following):
    """Start: one LIST, then one WATCH from its resourceVersion; adds are marked as initial."""
    recorder, feed = await following([([pod("a", 3)], "10")])
    assert recorder.informer.has_synced
    assert (server.listed, server.watched_from) == (1, ["10"])
    assert recorder.calls == [("add", "a", "3", "True")]
    feed.put_nowait([WatchEvent("ADDED", pod("b", 11))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    assert recorder.calls[-1] == ("add", "b", "11", "False")


async def test_an_empty_list_is_a_sync(server, started):
    server.lists = [([], "1")]
    informer = started(make(server))
    assert await informer.wait_synced(5)


async def test_the_store_is_updated_before_handlers_run(server, started):
    """A handler that looks its key up sees the change, or a newer one."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server)
    seen: list[str | None] = []

    def look(_old: Object, new: Object) -> None:
        found = informer.store.get(new.key)
        seen.append(found.resource_version if found else None)

    informer.add_handler(on_update=look)
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 2)), WatchEvent("MODIFIED", pod("a", 3))])
    await recorder.until(lambda: len(recorder.calls) == 3)
    assert seen == ["2", "3"]


async def test_indexes_follow_updates(following):
    """An object with a changed index value is not found under the old one."""
    recorder, feed = await following(
        [([pod("a", 1, node="n1")], "1")], indexers={"node": lambda found: (found.spec["nodeName"],)}
    )
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 2, node="n2"))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    assert recorder.informer.store.by_index("node", "n1") == []
    assert [found.name for found in recorder.informer.store.by_index("node", "n2")] == ["a"]


async def test_transform_decides_what_is_kept(server, started):
    """Dropped objects are neither stored nor delivered."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server, transform=lambda found: found.without("spec"))
    seen: list[Object] = []
    informer.add_handler(
        on_add=lambda new, _initial: seen.append(new),
        on_update=lambda _old, new: seen.append(new),
        on_delete=seen.append,
    )
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 2)), WatchEvent("DELETED", pod("a", 3))])
    await recorder.until(lambda: len(recorder.calls) == 3)
    assert [(one.resource_version, one.spec) for one in seen] == [("1", None), ("2", None), ("3", None)]


async def test_synced_only_after_the_whole_list(server, started):
    """While the first list fails there is no sync, and the wait's error says so; the handlers are called before the sync."""
    server.lists = [ConnectionFailed("down"), ([pod("a", 1), pod("b", 2)], "2")]
    informer = make(server)
    marks: list[bool] = []
    informer.add_handler(on_add=lambda _new, _initial: marks.append(informer.has_synced))
    started(informer)
    assert not await informer.wait_synced(0.5)
    assert informer.age == informer.followed_since == float("inf")
    assert isinstance(informer.last_error, ConnectionFailed)
    assert await informer.wait_synced(10)
    assert (marks, informer.has_synced) == ([False, False], True)
    assert informer.age < 1


async def test_cancel_ends_the_informer_quickly(server):
    """With an open watch, within a second."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server)
    task = asyncio.create_task(informer.run())
    await server.watches.get()
    task.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_metrics_keep_no_cache_alive(server):
    """The caches of a lower cluster that left the configuration are freed."""
    server.lists = [([pod("a", 3)], "10")]
    informer = make(server, name="dropped")
    labels = {"cluster": server.cluster, "resource": "dropped"}
    async with working(informer.run()):
        await informer.wait_synced()
        assert REGISTRY.get_sample_value("virtual_node_cached_objects", labels) == 1
    found = weakref.ref(informer)
    del informer
    await asyncio.sleep(0)  # the loop holds the cancellation, with all its frames, until its next turn
    gc.collect()
    assert found() is None
    assert REGISTRY.get_sample_value("virtual_node_cached_objects", labels) == 0


async def test_exceptions_of_a_handler_are_logged_once_a_minute(server, started):
    """A hostile server could fill the log with tracebacks; all are counted, and other handlers are called."""
    server.lists = [([pod(f"p-{number}", number + 1) for number in range(500)], "500")]
    informer = make(server)
    seen: list[str] = []

    def fail(_new: Object) -> None:
        raise ValueError("malformed")

    informer.on_change(fail)
    informer.add_handler(on_add=lambda new, _initial: seen.append(new.name))
    with capture_logs() as logs:
        started(informer)
        assert await informer.wait_synced(5)
    assert len(seen) == 500
    assert [entry["event"] for entry in logs].count("event handler failed") == 1
