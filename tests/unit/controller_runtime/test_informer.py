"""The informer follows a server through lists, watches, gaps and silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.client import Batch, ObjectList
from controller_runtime.errors import ConnectionFailed, Expired
from controller_runtime.informer import Informer
from controller_runtime.objects import Object, WatchEvent, from_dict


def pod(name: str, version: int, *, uid: str = "", node: str = "n1") -> Object:
    """A small pod."""
    return from_dict(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": uid or f"uid-{name}",
                "resourceVersion": str(version),
            },
            "spec": {"nodeName": node},
        }
    )


class ScriptedServer:
    """A stand-in for the client: lists and watches are what the test says, in order."""

    cluster = "test"

    def __init__(self) -> None:
        self.lists: list[tuple[list[Object], str] | Exception] = []
        self.listed = 0
        self.watched_from: list[str] = []
        self.watches: asyncio.Queue[asyncio.Queue[Any]] = asyncio.Queue()

    async def list(self, resource: Any, **selection: Any) -> ObjectList:
        self.listed += 1
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return ObjectList(*answer)

    async def watch_batches(
        self, resource: Any, *, resource_version: str, **options: Any
    ) -> AsyncGenerator[Batch, None]:
        self.watched_from.append(resource_version)
        feed: asyncio.Queue[Any] = asyncio.Queue()
        await self.watches.put(feed)
        while True:
            item = await feed.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item


class Recorder:
    """Writes down what the handlers were told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.changed = asyncio.Event()

    def attach(self, informer: Informer) -> None:
        informer.add_handler(
            on_add=lambda new, initial: self.note("add", new.name, new.resource_version, str(initial)),
            on_update=lambda old, new: self.note(
                "update", new.name, old.resource_version, new.resource_version
            ),
            on_delete=lambda old: self.note("delete", old.name, old.resource_version),
        )

    def note(self, *call: str) -> None:
        self.calls.append(call)
        self.changed.set()

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(100):
            while not predicate():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def server() -> ScriptedServer:
    """A scripted server."""
    return ScriptedServer()


@pytest.fixture
async def started(server: ScriptedServer):
    """Start informers; they end with the test."""
    tasks: list[asyncio.Task[None]] = []

    def start(informer: Informer) -> Informer:
        tasks.append(asyncio.create_task(informer.run()))
        return informer

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def make(server: ScriptedServer, **options: Any) -> Informer:
    """An informer of pods on the scripted server."""
    return Informer(server, resources.PODS, **options)  # type: ignore[arg-type]


async def test_one_list_then_one_watch_from_its_version(server, started):
    """Start: one LIST, then one WATCH from its resourceVersion; adds are marked as initial."""
    server.lists = [([pod("a", 3)], "10")]
    informer = make(server)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    assert informer.has_synced
    assert (server.listed, server.watched_from) == (1, ["10"])
    assert recorder.calls == [("add", "a", "3", "True")]
    feed.put_nowait([WatchEvent("ADDED", pod("b", 11))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    assert recorder.calls[-1] == ("add", "b", "11", "False")


async def test_an_empty_list_is_a_sync(server, started):
    """Nothing there is knowledge too."""
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

    recorder = Recorder()
    informer.add_handler(on_update=look)
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 2)), WatchEvent("MODIFIED", pod("a", 3))])
    await recorder.until(lambda: len(recorder.calls) == 3)
    assert seen == ["2", "3"]


async def test_a_watch_that_ends_is_resumed_without_a_list(server, started):
    """A closed watch is opened again from the last version seen, bookmarks included; handlers notice nothing."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    bookmark = from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "77"}})
    feed.put_nowait([WatchEvent("BOOKMARK", bookmark)])
    feed.put_nowait(None)
    await server.watches.get()
    assert server.listed == 1
    assert server.watched_from == ["1", "77"]
    assert recorder.calls == [("add", "a", "1", "True")]


@pytest.mark.looptime
async def test_expired_history_is_read_again_with_its_deletions(server, started):
    """410: relist; what vanished meanwhile is a delete with the last known state, what changed an update."""
    server.lists = [
        ([pod("gone", 1), pod("changed", 1), pod("same", 1)], "1"),
        ([pod("changed", 5), pod("same", 1)], "9"),
    ]
    informer = make(server)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    recorder.calls.clear()
    feed.put_nowait(Expired("too old", code=410))
    await server.watches.get()
    assert sorted(recorder.calls) == [("delete", "gone", "1"), ("update", "changed", "1", "5")]
    assert server.watched_from[-1] == "9"


@pytest.mark.looptime
async def test_a_successor_of_the_same_name_is_another_object(server, started):
    """Another uid under a known key is a delete and an add, in a gap and in a watch alike."""
    server.lists = [([pod("a", 1, uid="one")], "1"), ([pod("a", 5, uid="two")], "5")]
    informer = make(server)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait(Expired("too old", code=410))
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 6, uid="three"))])
    await recorder.until(lambda: len(recorder.calls) == 5)
    assert [call[0] for call in recorder.calls] == ["add", "delete", "add", "delete", "add"]


@pytest.mark.looptime
async def test_trouble_backs_off_and_keeps_serving(server, started):
    """Failed lists are retried with growing pauses; the cache stays, the error is known, success clears it."""
    server.lists = [
        ([pod("a", 1)], "1"),
        ConnectionFailed("down"),
        ConnectionFailed("down"),
        ([pod("a", 1)], "2"),
    ]
    informer = started(make(server))
    feed = await server.watches.get()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    feed.put_nowait(Expired("too old", code=410))
    await asyncio.sleep(0.01)
    assert informer.store.get("ns/a") is not None
    await server.watches.get()
    assert 0.8 + 1.6 <= loop.time() - begun <= 2 * (0.8 + 1.6) + 0.1
    assert informer.last_error is None


async def test_a_slow_handler_delays_only_itself(server, started):
    """Coroutine handlers have a buffer of their own; others are called meanwhile."""
    server.lists = [([], "1")]
    informer = make(server)
    blocked, all_slow = asyncio.Event(), asyncio.Event()
    slow: list[str] = []

    async def wait(new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        await blocked.wait()
        slow.append(new.name)
        if len(slow) == 5:
            all_slow.set()

    informer.add_handler(on_add=wait)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("ADDED", pod(f"p{number}", number)) for number in range(2, 7)])
    await recorder.until(lambda: len(recorder.calls) == 5)
    assert slow == []
    blocked.set()
    await asyncio.wait_for(all_slow.wait(), 5)
    assert slow == [f"p{number}" for number in range(2, 7)]


async def test_a_failing_handler_harms_nobody(server, started):
    """An exception in one handler is counted; the next handler and the next event come all the same."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server)

    def fail(_new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        raise RuntimeError("a bug")

    informer.add_handler(on_add=fail)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("ADDED", pod("b", 2))])
    await recorder.until(lambda: len(recorder.calls) == 2)


async def test_a_late_handler_gets_what_is_there(server, started):
    """A handler added after the sync receives an add for everything cached."""
    server.lists = [([pod("a", 1), pod("b", 2)], "2")]
    informer = started(make(server))
    await server.watches.get()
    recorder = Recorder()
    recorder.attach(informer)
    assert sorted(call[1] for call in recorder.calls) == ["a", "b"]


async def test_indexes_follow_updates(server, started):
    """An update that changes an index value leaves nothing under the old one."""
    server.lists = [([pod("a", 1, node="n1")], "1")]
    informer = make(server, indexers={"node": lambda found: (found.spec["nodeName"],)})
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 2, node="n2"))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    assert informer.store.by_index("node", "n1") == []
    assert [found.name for found in informer.store.by_index("node", "n2")] == ["a"]


@pytest.mark.looptime
async def test_resync_delivers_the_cache_and_asks_nothing(server, started):
    """Resync hands every object out again, from memory."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server, resync_period=60)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    await server.watches.get()
    await asyncio.sleep(121)
    assert recorder.calls[1:] == [("update", "a", "1", "1")] * 2
    assert (server.listed, len(server.watched_from)) == (1, 1)


async def test_transform_decides_what_is_kept(server, started):
    """What transform drops is neither stored nor delivered."""
    server.lists = [([pod("a", 1)], "1")]
    informer = started(make(server, transform=lambda found: found.without("spec")))
    await server.watches.get()
    found = informer.store.get("ns/a")
    assert found is not None
    assert found.spec is None
