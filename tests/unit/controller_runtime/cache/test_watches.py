"""A watch that ends, breaks or falls silent is opened again, after a pause if it was futile."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from controller_runtime.client.client import Batch
from controller_runtime.errors import ConnectionFailed, Expired, Unavailable
from controller_runtime.objects import WatchEvent
from tests.fakes.apiserver.client import bookmark
from tests.unit.controller_runtime.cache.conftest import RestlessServer, make, pod

pytestmark = pytest.mark.looptime


async def test_a_watch_that_ends_is_resumed_without_a_list(server, following):
    """From the last version seen, bookmarks included; handlers get nothing."""
    recorder, feed = await following([([pod("a", 1)], "1")])
    feed.put_nowait([bookmark(77)])
    feed.put_nowait(None)
    await server.watches.get()
    assert server.listed == 1
    assert server.watched_from == ["1", "77"]
    assert recorder.calls == [("add", "a", "1", "True")]


async def test_failed_lists_back_off_and_keep_the_cache(server, started):
    """The error is visible, and success clears it."""
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
    assert informer.followed_since == begun
    feed.put_nowait(Expired("too old", code=410))
    await asyncio.sleep(0.01)
    assert informer.store.get("ns/a") is not None
    await server.watches.get()
    assert 0.8 + 1.6 <= loop.time() - begun <= 2 * (0.8 + 1.6) + 0.3
    assert informer.last_error is None
    assert informer.followed_since == loop.time()


async def test_watches_that_end_at_once_are_backed_off(started):
    """For example by a proxy; this causes no lists."""
    server = RestlessServer(0.01, None)
    started(make(server))
    await asyncio.sleep(600)
    assert 10 <= len(server.watched_from) <= 40
    assert server.listed == 1


async def test_watches_that_end_in_time_are_resumed_at_once(started):
    """A quiet watch that the server ends after its time is no failure: no pause, no list."""
    server = RestlessServer(300, None)
    informer = started(make(server))
    await asyncio.sleep(3001)
    assert (len(server.watched_from), server.listed) == (11, 1)
    assert informer.last_error is None
    assert informer.followed_since < 1


async def test_pauses_double_up_to_half_a_minute_and_reset_after_quiet(server, started, monkeypatch):
    """0.8 s doubled up to 30 s, without jitter; after two quiet minutes the first pause is short again."""
    monkeypatch.setattr("controller_runtime.cache.reflector.random.random", lambda: 0.0)
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


async def test_broken_connection_is_resumed_without_a_list(server, following):
    """At once, from the last version."""
    _recorder, feed = await following([([pod("a", 1)], "1")])
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 7))])
    feed.put_nowait(ConnectionFailed("reset"))
    begun = asyncio.get_running_loop().time()
    await server.watches.get()
    assert asyncio.get_running_loop().time() - begun <= 0.2
    assert (server.listed, server.watched_from) == (1, ["1", "7"])


async def test_silence_after_bookmarks_is_a_dead_connection(server, started):
    """A proxy keeps a connection to a lost apiserver; three missing bookmarks reveal it."""
    server.lists = [([pod("a", 1)], "1")]
    informer = started(make(server))
    feed = await server.watches.get()
    loop = asyncio.get_running_loop()
    await asyncio.sleep(250)
    feed.put_nowait([bookmark(77)])
    await asyncio.sleep(100)
    feed.put_nowait([WatchEvent("ADDED", pod("b", 78))])
    begun = loop.time()
    await server.watches.get()
    assert 180 <= loop.time() - begun <= 180.2
    assert (server.listed, server.watched_from) == (1, ["1", "78"])
    assert str(informer.last_error) == "the watch has been silent for 180 s"


async def test_silence_without_bookmarks_is_normal(server, started):
    """Not every server sends bookmarks for every resource."""
    server.lists = [([pod("a", 1)], "1")]
    informer = started(make(server))
    await server.watches.get()
    await asyncio.sleep(299)
    assert (informer.last_error, server.watched_from) == (None, ["1"])


async def test_watch_timeout_is_five_to_ten_minutes(started):
    """TimeoutSeconds is drawn from 300 to 600, and silence counts as a dead connection only a little later."""
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


async def test_short_watches_with_events_are_backed_off(server, following):
    """A server that ends every watch after one event gets requests at growing intervals, up to ten seconds."""
    recorder, feed = await following([([pod("a", 1)], "1")])
    loop = asyncio.get_running_loop()
    gaps = []
    for version in range(2, 22):
        feed.put_nowait([WatchEvent("MODIFIED", pod("a", version))])
        feed.put_nowait(None)
        ended = loop.time()
        feed = await server.watches.get()
        gaps.append(loop.time() - ended)
    assert gaps[0] == pytest.approx(0.0, abs=0.01)
    assert gaps[-1] == pytest.approx(10.0, abs=0.1)
    assert all(late >= early - 0.01 for early, late in itertools.pairwise(gaps))
    assert server.listed == 1
    assert recorder.calls[-1] == ("update", "a", "20", "21")
    await asyncio.sleep(5)
    feed.put_nowait(None)
    ended = loop.time()
    await server.watches.get()
    assert loop.time() - ended < 0.01
