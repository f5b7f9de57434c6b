"""Objects that an informer leaves out are treated as if they were not in the collection."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.errors import Unavailable
from controller_runtime.objects import Object, WatchEvent, from_dict
from tests.unit.controller_runtime.cache.conftest import Recorder, make, pod

pytestmark = pytest.mark.looptime


def is_on_n1(found: Object) -> bool:
    """Keep the pods of one node."""
    return bool((found.spec or {}).get("nodeName") == "n1")


async def test_left_out_objects_are_neither_stored_nor_reported(server, started):
    """Listed or watched; a change in either direction is an add or a delete, with the last state that was kept."""
    server.lists = [([pod("a", 1), pod("b", 2, node="n2")], "2")]
    informer = make(server, keep=is_on_n1)
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    events = [
        WatchEvent("ADDED", pod("c", 3, node="n2")),
        WatchEvent("MODIFIED", pod("b", 4)),
        WatchEvent("MODIFIED", pod("a", 5, node="n2")),
        WatchEvent("DELETED", pod("c", 6, node="n2")),
        WatchEvent("DELETED", pod("b", 7)),
    ]
    feed.put_nowait(events)
    await recorder.until(lambda: len(recorder.calls) == 4)
    assert recorder.calls == [
        ("add", "a", "1", "True"),
        ("add", "b", "4", "False"),
        ("delete", "a", "1"),
        ("delete", "b", "7"),
    ]
    assert informer.store.keys() == []


async def test_a_list_keeps_nothing_of_left_out_objects(server, started):
    """Thousands of large objects of others must not be in memory together."""
    kept: list[Object] = []
    server.lists = [([pod(f"p-{number}", number + 1, node="n2") for number in range(1000)], "1000")]
    informer = make(server, keep=is_on_n1)
    replace = informer.replace

    async def spied(items: list[Object], version: str) -> None:
        kept.extend(items)
        await replace(items, version)

    informer.replace = spied  # type: ignore[method-assign]
    started(informer)
    assert await informer.wait_synced(5)
    assert kept == []


async def test_an_object_that_is_left_out_after_a_gap_is_removed(server, started):
    """The list after a 410 shows it in its new state."""
    server.lists = [([pod("a", 1)], "1"), ([pod("a", 5, node="n2")], "5")]
    informer = make(server, keep=is_on_n1)
    recorder = Recorder(informer)
    started(informer)
    await server.watches.get()
    informer._reflector.list_again()
    await recorder.until(lambda: len(recorder.calls) == 2)
    assert recorder.calls[-1] == ("delete", "a", "1")


@pytest.mark.parametrize("is_listed", [True, False])
async def test_left_out_objects_are_read_again_when_they_may_be_kept(server, started, is_listed):
    """Only if an object of that namespace was left out; the watch goes on from the new list."""
    nodes = {"n1"}
    late = pod("b", 2, node="n2")
    server.lists = [([pod("a", 1), *([late] if is_listed else [])], "2"), ([pod("a", 1), late], "9")]
    informer = make(server, keep=lambda found: found.spec["nodeName"] in nodes)
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    if not is_listed:
        feed.put_nowait([WatchEvent("ADDED", late), WatchEvent("ADDED", pod("c", 3))])
        await recorder.until(lambda: ("add", "c", "3", "False") in recorder.calls)
    nodes.add("n2")
    informer.reconsider("another")
    await asyncio.sleep(1)
    assert server.listed == 1
    informer.reconsider("ns")
    informer.reconsider("ns")
    await recorder.until(lambda: ("add", "b", "2", "False") in recorder.calls)
    await server.watches.get()
    assert (server.listed, server.watched_from) == (2, ["2", "9"])


async def test_left_out_objects_are_read_again_after_a_pause_between_watches(server, started):
    """They may be kept from a moment on at which the server does not answer."""
    nodes = {"n1"}
    pods = [pod("a", 1), pod("b", 2, node="n2")]
    server.lists = [(pods, "2"), (pods, "9")]
    informer = make(server, keep=lambda found: found.spec["nodeName"] in nodes)
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait(Unavailable("down", code=503))
    await asyncio.sleep(0.1)
    assert informer.last_error is not None
    nodes.add("n2")
    informer.reconsider("ns")
    await recorder.until(lambda: ("add", "b", "2", "False") in recorder.calls)
    assert server.listed == 2


async def test_objects_in_thousands_of_namespaces_take_no_memory_when_they_are_left_out(server, started):
    """A server may name a new namespace in each event. A list then reads the objects of any namespace again."""
    server.lists = [([], "1"), ([pod("late", 5000)], "5000")]
    kept = {"last"}
    informer = make(server, keep=lambda found: found.name in kept)
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    for number in range(3000):
        other = {"metadata": {"name": "p", "namespace": f"ns-{number}", "resourceVersion": str(number + 2)}}
        feed.put_nowait([WatchEvent("ADDED", from_dict(other))])
    feed.put_nowait([WatchEvent("ADDED", pod("last", 4000))])
    await recorder.until(lambda: len(recorder.calls) == 1)
    assert len(informer._left_out) <= 1000
    kept.add("late")
    informer.reconsider("ns")
    await server.watches.get()
    assert informer.store.keys() == ["ns/late"]


async def test_lists_only_after_the_informers_that_decide(server, started):
    """Their objects decide what is kept."""
    server.lists = [([], "1"), ([], "1")]
    first = make(server)
    second = make(server, keep=is_on_n1, after=(first,))
    started(second)
    await asyncio.sleep(10)
    assert server.listed == 0
    started(first)
    assert await second.wait_synced(5)
