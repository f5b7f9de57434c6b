"""The informer follows a server through lists, watches, gaps and silence."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from controller_runtime import resources
from controller_runtime.client import Batch, ObjectList
from controller_runtime.errors import BadRequest, ConnectionFailed, Expired, Unavailable, error_from_status
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

    async def list(self, resource: Any, *, transform: Any = None, **selection: Any) -> ObjectList:
        self.listed += 1
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found, version = answer
        return ObjectList([transform(one) for one in found] if transform else found, version)

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
    assert 0.8 + 1.6 <= loop.time() - begun <= 2 * (0.8 + 1.6) + 0.3
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
    """What transform drops is neither stored nor delivered, listed or watched."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server, transform=lambda found: found.without("spec"))
    seen: list[Object] = []
    recorder = Recorder()
    informer.add_handler(
        on_add=lambda new, _initial: seen.append(new),
        on_update=lambda _old, new: seen.append(new),
        on_delete=seen.append,
    )
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 2)), WatchEvent("DELETED", pod("a", 3))])
    await recorder.until(lambda: len(recorder.calls) == 3)
    assert [(one.resource_version, one.spec) for one in seen] == [("1", None), ("2", None), ("3", None)]


@pytest.mark.looptime
async def test_synced_only_after_the_whole_list(server, started):
    """While the first list fails there is no sync, and the wait for it says so; a handler's own comes last."""
    server.lists = [ConnectionFailed("down"), ([pod("a", 1), pod("b", 2)], "2")]
    informer = make(server)
    marks: list[bool] = []
    registration = informer.add_handler(on_add=lambda _new, _initial: marks.append(registration.has_synced))
    started(informer)
    assert not await informer.wait_synced(0.5)
    assert informer.age == float("inf")
    assert isinstance(informer.last_error, ConnectionFailed)
    assert await informer.wait_synced(10)
    assert (marks, registration.has_synced) == ([False, False], True)
    assert informer.age < 1


async def test_coroutine_handlers_sync_after_they_were_called(server, started):
    """A buffered handler has synced when it has dealt with the whole first list, not when the store has."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server)
    gate, done = asyncio.Event(), asyncio.Event()

    async def wait(_new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        await gate.wait()
        done.set()

    registration = informer.add_handler(on_add=wait)
    started(informer)
    await server.watches.get()
    assert (informer.has_synced, registration.has_synced) == (True, False)
    gate.set()
    await done.wait()
    await asyncio.sleep(0)
    assert registration.has_synced


async def test_late_coroutine_handler(server, started):
    """A coroutine handler that is added while the informer runs gets the cache, then the changes."""
    server.lists = [([pod("a", 1)], "1")]
    informer = started(make(server))
    feed = await server.watches.get()
    seen: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

    async def note(new: Object, initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        await seen.put((new.name, initial))

    informer.add_handler(on_add=note)
    feed.put_nowait([WatchEvent("ADDED", pod("b", 2))])
    assert [await asyncio.wait_for(seen.get(), 5) for _ in range(2)] == [("a", True), ("b", False)]


@pytest.mark.parametrize("buffered", [False, True])
async def test_removed_handler_hears_nothing_more(server, started, *, buffered: bool):
    """Once removed, a handler is not called, not even for what was already buffered; others are."""
    server.lists = [([], "1")]
    informer = make(server)
    seen: list[str] = []
    gate = asyncio.Event()

    async def wait(new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        seen.append(new.name)
        await gate.wait()

    def note(new: Object, _initial: bool) -> None:  # noqa: FBT001
        seen.append(new.name)

    registration = informer.add_handler(on_add=wait if buffered else note)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    before = len(asyncio.all_tasks())
    feed.put_nowait([WatchEvent("ADDED", pod("b", 2))])
    await recorder.until(lambda: len(recorder.calls) == 1)
    await asyncio.sleep(0)
    feed.put_nowait([WatchEvent("ADDED", pod("c", 3))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    expected = ["b"] if buffered else ["b", "c"]
    assert seen == expected
    registration.remove()
    registration.remove()
    gate.set()
    feed.put_nowait([WatchEvent("ADDED", pod("d", 4))])
    await recorder.until(lambda: len(recorder.calls) == 3)
    for _ in range(3):
        await asyncio.sleep(0)
    assert seen == expected
    assert len(asyncio.all_tasks()) == before - buffered


async def test_handlers_may_come_and_go_inside_handlers(server, started):
    """A handler that removes itself does not rob the next one, and one that is added hears of nothing twice."""
    server.lists = [([], "1")]
    informer = make(server)
    late = Recorder()

    def once(_new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        registration.remove()
        late.attach(informer)

    registration = informer.add_handler(on_add=once)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("ADDED", pod("a", 2)), WatchEvent("ADDED", pod("b", 3))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    await late.until(lambda: len(late.calls) >= 2)
    assert [call[1] for call in recorder.calls] == ["a", "b"]
    assert [call[1] for call in late.calls] == ["a", "b"]


async def test_failing_coroutine_handler(server, started):
    """An exception, or a cancellation from inside, ends one call of a coroutine handler and not the handler."""
    server.lists = [([], "1")]
    informer = make(server)
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def fail(new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        await seen.put(new.name)
        if new.name == "a":
            raise RuntimeError("a bug")
        if new.name == "b":
            raise asyncio.CancelledError

    informer.add_handler(on_add=fail)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("ADDED", pod(name, 2)) for name in "abc"])
    assert [await asyncio.wait_for(seen.get(), 5) for _ in range(3)] == ["a", "b", "c"]


async def test_deletion_carries_the_last_state(server, started):
    """DELETED hands over the object as the event has it; for an unknown one nobody is called."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("DELETED", pod("x", 4)), WatchEvent("DELETED", pod("a", 5))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    assert recorder.calls[-1] == ("delete", "a", "5")
    assert len(informer.store) == 0


async def test_handlers_cannot_harm_the_cache(server, started):
    """What a handler does to the spec it reads stays with it."""
    server.lists = [([pod("a", 1, node="n1")], "1")]
    informer = make(server)

    def scribble(new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        new.spec["nodeName"] = "elsewhere"
        new.to_dict()["metadata"]["name"] = "x"

    informer.add_handler(on_add=scribble)
    started(informer)
    await server.watches.get()
    found = informer.store.get("ns/a")
    assert found is not None
    assert (found.name, found.spec) == ("a", {"nodeName": "n1"})


async def test_cancel_ends_the_informer_quickly(server):
    """With a watch open and a handler stuck, cancelling ``run`` ends everything within a second."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server, resync_period=60)

    async def stuck(_new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        await asyncio.Event().wait()

    informer.add_handler(on_add=stuck)
    task = asyncio.create_task(informer.run())
    await server.watches.get()
    task.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await task


class RestlessServer(ScriptedServer):
    """Every list has one pod; every watch ends by itself after some seconds, in the way the test says."""

    def __init__(self, seconds: float, ending: Exception | None) -> None:
        super().__init__()
        self.seconds = seconds
        self.ending = ending
        self.batches: list[Batch] = []

    async def list(self, resource: Any, **selection: Any) -> ObjectList:
        self.listed += 1
        return ObjectList([pod("a", 1)], str(self.listed))

    async def watch_batches(
        self, resource: Any, *, resource_version: str, **options: Any
    ) -> AsyncGenerator[Batch, None]:
        self.watched_from.append(resource_version)
        await asyncio.sleep(self.seconds)
        if self.ending is not None:
            raise self.ending
        for batch in self.batches:
            yield batch


@pytest.mark.looptime
async def test_watches_that_end_at_once_are_backed_off(started):
    """A proxy that closes every watch straight away is not hammered, and costs no lists."""
    server = RestlessServer(0.01, None)
    started(make(server))
    await asyncio.sleep(600)
    assert 10 <= len(server.watched_from) <= 40
    assert server.listed == 1


@pytest.mark.looptime
async def test_watches_that_end_in_time_are_resumed_at_once(started):
    """A quiet watch that the server ends after its time is nobody's failure: no pause, no list."""
    server = RestlessServer(300, None)
    informer = started(make(server))
    await asyncio.sleep(3001)
    assert (len(server.watched_from), server.listed) == (11, 1)
    assert informer.last_error is None


@pytest.mark.looptime
async def test_history_that_always_expires_is_backed_off(started):
    """A server whose versions expire faster than they are used is not listed over and over."""
    server = RestlessServer(2, Expired("too old", code=410))
    started(make(server))
    await asyncio.sleep(600)
    assert 10 <= server.listed <= 40


@pytest.mark.looptime
async def test_pauses_double_up_to_half_a_minute_and_start_anew_after_quiet(server, started, monkeypatch):
    """0.8 s doubled up to 30 s, the jitter left out; after two quiet minutes the first pause is short again."""
    monkeypatch.setattr("controller_runtime.watch_backoff.random.random", lambda: 0.0)
    loop = asyncio.get_running_loop()
    moments: list[float] = []
    server.lists = [ConnectionFailed("down") for _ in range(8)] + [([], "1")] * 3

    class Timed(list):
        def pop(self, index: Any = -1) -> Any:
            moments.append(loop.time())
            return super().pop(index)

    server.lists = Timed(server.lists)
    started(make(server))
    feed = await server.watches.get()
    pauses = [late - early for early, late in itertools.pairwise(moments)]
    assert pauses == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30], abs=0.01)
    await asyncio.sleep(121)
    feed.put_nowait(Unavailable("down", code=503))
    begun = loop.time()
    await server.watches.get()
    assert loop.time() - begun == pytest.approx(0.8, abs=0.01)
    assert server.watched_from == ["1", "1"]


@pytest.mark.looptime
async def test_broken_connection_is_resumed_without_a_list(server, started):
    """A watch that breaks is opened again at once from the last version; the cache is not read anew."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 7))])
    feed.put_nowait(ConnectionFailed("reset"))
    begun = asyncio.get_running_loop().time()
    await server.watches.get()
    assert asyncio.get_running_loop().time() - begun <= 0.2
    assert (server.listed, server.watched_from) == (1, ["1", "7"])


@pytest.mark.looptime
async def test_version_from_the_future_is_read_again(server, started):
    """A server restored from a backup does not know our version yet: list, as after a 410."""
    server.lists = [([pod("a", 90), pod("b", 91)], "91"), ([pod("a", 40)], "41")]
    informer = make(server)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    recorder.calls.clear()
    status = {
        "kind": "Status",
        "code": 504,
        "reason": "Timeout",
        "message": "Too large resource version: 91, current: 41",
        "details": {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    }
    feed.put_nowait(error_from_status(status))
    await server.watches.get()
    assert (server.listed, server.watched_from) == (2, ["91", "41"])
    assert sorted(recorder.calls) == [("delete", "b", "91"), ("update", "a", "90", "40")]


@pytest.mark.looptime
async def test_silence_after_bookmarks_is_a_dead_connection(server, started):
    """A proxy keeps a connection whose apiserver is gone; three bookmarks that do not come give it away."""
    server.lists = [([pod("a", 1)], "1")]
    informer = started(make(server))
    feed = await server.watches.get()
    loop = asyncio.get_running_loop()
    await asyncio.sleep(250)
    bookmark = from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "77"}})
    feed.put_nowait([WatchEvent("BOOKMARK", bookmark)])
    await asyncio.sleep(100)
    feed.put_nowait([WatchEvent("ADDED", pod("b", 78))])
    begun = loop.time()
    await server.watches.get()
    assert 180 <= loop.time() - begun <= 180.2
    assert (server.listed, server.watched_from) == (1, ["1", "78"])
    assert str(informer.last_error) == "the watch has been silent for 180 s"


@pytest.mark.looptime
async def test_server_that_was_restored_from_a_backup_is_read_again(server, started):
    """It accepts a watch from a version that it has yet to reach, and says nothing: after two such watches, list."""
    server.lists = [([pod("a", 90), pod("b", 91)], "91"), ([pod("a", 40)], "41")]
    informer = make(server)
    recorder = Recorder()
    recorder.attach(informer)
    started(informer)
    feed = await server.watches.get()
    bookmark = from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "95"}})
    feed.put_nowait([WatchEvent("BOOKMARK", bookmark)])
    await asyncio.sleep(1)
    recorder.calls.clear()
    feed.put_nowait(ConnectionFailed("reset"))
    begun = asyncio.get_running_loop().time()
    for _ in range(3):
        await server.watches.get()
    assert asyncio.get_running_loop().time() - begun < 2 * 180 + 10
    assert server.watched_from == ["91", "95", "95", "41"]
    assert sorted(recorder.calls) == [("delete", "b", "91"), ("update", "a", "90", "40")]


@pytest.mark.looptime
async def test_silence_without_bookmarks_is_quiet(server, started):
    """Not every server sends bookmarks of every resource: then a quiet watch is nothing but quiet."""
    server.lists = [([pod("a", 1)], "1")]
    informer = started(make(server))
    await server.watches.get()
    await asyncio.sleep(299)
    assert (informer.last_error, server.watched_from) == (None, ["1"])


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("error", "versions"),
    [
        (BadRequest("invalid resource version", code=400), ["1", "1", "9"]),
        (Unavailable("unable to decode an event", code=500), ["1", "1", "9"]),
        (Unavailable("starting", code=503), ["1", "1", "1"]),
        (ConnectionFailed("reset"), ["1", "1", "1"]),
    ],
    ids=str,
)
async def test_version_that_the_server_cannot_go_on_from(
    server, started, error: Exception, versions: list[str]
):
    """Refused twice where a list may help, the collection is listed; a server that is away or busy is spared that."""
    server.lists = [([pod("a", 1)], "1"), ([pod("a", 9)], "9")]
    started(make(server))
    for _ in range(2):
        feed = await server.watches.get()
        feed.put_nowait(error)
    await server.watches.get()
    assert server.watched_from == versions


@pytest.mark.looptime
async def test_watch_asks_for_five_to_ten_minutes(started):
    """TimeoutSeconds is drawn from 300 to 600, and silence counts as death only a little later."""
    asked: list[dict[str, Any]] = []

    class Asked(RestlessServer):
        def watch_batches(self, resource: Any, **options: Any) -> AsyncGenerator[Batch, None]:
            asked.append(options)
            return super().watch_batches(resource, **options)

    server = Asked(300, None)
    started(make(server, namespace="ns", label_selector="a=b", field_selector="c=d"))
    await asyncio.sleep(9001)
    seconds = [options["timeout_seconds"] for options in asked]
    assert len(set(seconds)) > 20
    assert all(300 <= value <= 600 for value in seconds)
    assert all(
        0 < options["read_timeout"] - options["timeout_seconds"] <= 60
        and (options["namespace"], options["label_selector"], options["field_selector"])
        == ("ns", "a=b", "c=d")
        for options in asked
    )


async def test_metrics_keep_no_cache_alive(server):
    """A lower cluster that was taken out of the configuration takes its caches with it."""
    server.lists = [([pod("a", 3)], "10")]
    informer = make(server, name="dropped")
    task = asyncio.create_task(informer.run())
    await informer.wait_synced()
    labels = {"cluster": server.cluster, "resource": "dropped"}
    assert REGISTRY.get_sample_value("virtual_node_cached_objects", labels) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    found = weakref.ref(informer)
    del informer, task
    await asyncio.sleep(0)  # the loop holds the cancellation, with all its frames, until its next turn
    gc.collect()
    assert found() is None
    assert REGISTRY.get_sample_value("virtual_node_cached_objects", labels) == 0
