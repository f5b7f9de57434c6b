"""After a lost watch history the informer lists again and delivers the difference."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.errors import BadRequest, ConnectionFailed, Expired, Unavailable, error_from_status
from controller_runtime.objects import WatchEvent, from_dict
from tests import objects
from tests.fakes.apiserver.client import bookmark
from tests.unit.controller_runtime.cache.conftest import Recorder, RestlessServer, make, pod

pytestmark = pytest.mark.looptime


async def test_expired_history_is_listed_again_with_deletions(server, following):
    """After 410 a vanished object is a delete with the last known state, a changed one an update."""
    recorder, feed = await following(
        [
            ([pod("gone", 1), pod("changed", 1), pod("same", 1)], "1"),
            ([pod("changed", 5), pod("same", 1)], "9"),
        ]
    )
    recorder.calls.clear()
    feed.put_nowait(Expired("too old", code=410))
    await server.watches.get()
    assert sorted(recorder.calls) == [("delete", "gone", "1"), ("update", "changed", "1", "5")]
    assert server.watched_from[-1] == "9"


async def test_a_successor_of_the_same_name_is_another_object(server, following):
    """Another uid under a known key is a delete and an add, in a gap and in a watch."""
    recorder, feed = await following([([pod("a", 1, uid="one")], "1"), ([pod("a", 5, uid="two")], "5")])
    feed.put_nowait(Expired("too old", code=410))
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 6, uid="three"))])
    await recorder.until(lambda: len(recorder.calls) == 5)
    assert [call[0] for call in recorder.calls] == ["add", "delete", "add", "delete", "add"]


async def test_history_that_always_expires_is_backed_off(started):
    """Versions that expire before they are used do not cause a list loop."""
    server = RestlessServer(2, Expired("too old", code=410))
    started(make(server))
    await asyncio.sleep(600)
    assert 10 <= server.listed <= 40


async def test_version_from_the_future_is_listed_again(server, following):
    """A server restored from a backup does not know the version yet: list, as after a 410."""
    recorder, feed = await following([([pod("a", 90), pod("b", 91)], "91"), ([pod("a", 40)], "41")])
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


async def test_server_restored_from_a_backup_is_listed_again(server, following):
    """It accepts a watch from a future version, and sends nothing: after two such watches, list."""
    recorder, feed = await following([([pod("a", 90), pod("b", 91)], "91"), ([pod("a", 40)], "41")])
    feed.put_nowait([bookmark(95)])
    await asyncio.sleep(1)
    recorder.calls.clear()
    feed.put_nowait(ConnectionFailed("reset"))
    begun = asyncio.get_running_loop().time()
    for _ in range(3):
        await server.watches.get()
    assert asyncio.get_running_loop().time() - begun < 2 * 180 + 10
    assert server.watched_from == ["91", "95", "95", "41"]
    assert sorted(recorder.calls) == [("delete", "b", "91"), ("update", "a", "90", "40")]


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
async def test_version_refused_twice_is_listed_again(server, started, error: Exception, versions: list[str]):
    """Only where a list may help; not for an unreachable or busy server."""
    server.lists = [([pod("a", 1)], "1"), ([pod("a", 9)], "9")]
    started(make(server))
    for _ in range(2):
        feed = await server.watches.get()
        feed.put_nowait(error)
    await server.watches.get()
    assert server.watched_from == versions


async def test_an_object_created_and_deleted_in_a_gap_is_delivered_as_deleted(server, following):
    """No event and no list shows it. One that is created after the list stays expected."""
    recorder, feed = await following([([], "1"), ([pod("kept", 4)], "9"), ([], "20")])
    for name, version in (("kept", 4), ("lost", 5), ("later", 10)):
        recorder.informer.expect(pod(name, version))
    assert recorder.calls == []
    feed.put_nowait(Expired("too old", code=410))
    feed = await server.watches.get()
    assert recorder.calls == [("add", "kept", "4", "False"), ("delete", "lost", "5")]
    feed.put_nowait([WatchEvent("ADDED", pod("later", 10))])
    await recorder.until(lambda: recorder.calls[-1] == ("add", "later", "10", "False"))
    recorder.calls.clear()
    feed.put_nowait(Expired("too old", code=410))
    await server.watches.get()
    assert sorted(recorder.calls) == [("delete", "kept", "4"), ("delete", "later", "10")]


async def test_an_object_is_delivered_as_deleted_if_the_answer_to_its_creation_is_late(server, following):
    """The cache has read everything up to its version, and does not have it."""
    recorder, _ = await following([([pod("kept", 4)], "9")])
    recorder.calls.clear()
    recorder.informer.expect(pod("kept", 4))
    recorder.informer.expect(pod("lost", 5))
    assert recorder.calls == [("delete", "lost", "5")]


async def test_an_object_that_an_informer_does_not_select_is_not_expected(server):
    """By labels or namespace; the process creates many objects that some of its informers never show."""
    informers = [
        Recorder(make(server, label_selector="app!=web")),
        Recorder(make(server, namespace="elsewhere")),
        Recorder(make(server, label_selector="app=web", namespace="shop")),
    ]
    created = from_dict(objects.pod("a", labels={"app": "web"}, metadata={"resourceVersion": "5"}))
    for recorder in informers:
        recorder.informer.expect(created)
        await recorder.informer.replace([], "9")
    assert [recorder.calls for recorder in informers] == [[], [], [("delete", "a", "5")]]


async def test_an_event_of_an_earlier_object_does_not_end_the_expectation(server, following):
    """The watch is behind the answer to the creation of the next object of that name."""
    recorder, feed = await following([([pod("a", 1, uid="one")], "1"), ([], "9")])
    recorder.informer.expect(pod("a", 5, uid="two"))
    feed.put_nowait([WatchEvent("DELETED", pod("a", 3, uid="one"))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    feed.put_nowait(Expired("too old", code=410))
    await server.watches.get()
    assert recorder.calls[1:] == [("delete", "a", "3"), ("delete", "a", "5")]
