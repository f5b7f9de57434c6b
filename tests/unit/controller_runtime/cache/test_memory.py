"""The caches of one server use at most the memory that its client allows."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import msgspec
import pytest

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.collection import decode_watch_event
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import CacheFull, Expired
from controller_runtime.objects import Object, WatchEvent, from_dict
from tests.background import working
from tests.unit.controller_runtime.cache.conftest import Recorder, ScriptedServer, make, pod

pytestmark = pytest.mark.looptime


def large(name: str, version: int = 1, *, namespace: str = "ns", size: int = 10_000) -> Object:
    """A pod of about ``size`` bytes."""
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return from_dict({"kind": "Pod", "metadata": metadata, "spec": {"x": "x" * size}})


def limited(server: ScriptedServer, limit: int = 100_000) -> CacheBudget:
    """Give the server's client a limit of memory."""
    server.caches = CacheBudget(limit, cluster="test")
    return server.caches


async def test_a_list_beyond_the_limit_ends_the_informer(server):
    limited(server)
    server.lists = [([large(f"p{number}") for number in range(20)], "1")]
    informer = make(server)
    with pytest.raises(CacheFull, match="raise cacheBytes of this cluster"):
        await informer.run()
    assert len(informer.store) == 0


async def test_watch_events_beyond_the_limit_end_the_informer(server):
    budget = limited(server)
    server.lists = [([large("p")], "1")]
    informer = make(server)
    running = asyncio.create_task(informer.run())
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("ADDED", large(f"q{number}", 2)) for number in range(20)])
    with pytest.raises(CacheFull, match="largest: ns"):
        await running
    assert budget.used <= budget.limit


async def test_all_informers_of_a_server_share_the_limit(server):
    limited(server, 50_000)
    server.lists = [([large(f"a{number}") for number in range(3)], "1")]
    first = make(server)
    async with working(first.run()):
        await first.wait_synced(5)
        server.lists = [([large(f"b{number}") for number in range(3)], "1")]
        with pytest.raises(CacheFull):
            await Informer(server, resources.SECRETS).run()


async def test_deletions_and_smaller_versions_give_memory_back(server, started):
    budget = limited(server)
    server.lists = [([large("a"), large("b")], "1")]
    recorder = Recorder(started(make(server)))
    feed = await server.watches.get()
    assert budget.used > 20_000
    feed.put_nowait([WatchEvent("MODIFIED", pod("a", 2)), WatchEvent("DELETED", large("b", 3))])
    await recorder.until(lambda: len(recorder.calls) == 4)
    assert 0 < budget.used < 3000


async def test_listing_unchanged_objects_again_takes_no_more_memory(server, started):
    """Otherwise every list after an outage would need twice the memory, and stop a cluster that fits."""
    limited(server)
    objects = [large(f"p{number}") for number in range(7)]
    server.lists = [(objects, "1"), ([large(f"p{number}") for number in range(7)], "2")]
    informer = started(make(server))
    feed = await server.watches.get()
    first = informer.store.get("ns/p0")
    feed.put_nowait(Expired("too old", code=410))
    await server.watches.get()
    assert informer.store.get("ns/p0") is first


async def test_a_cleared_informer_gives_its_memory_back_and_lists_again(server):
    budget = limited(server)
    server.lists = [([large("p")], "1"), ([large("q")], "2")]
    informer = make(server)
    recorder = Recorder(informer)
    async with working(informer.run()):
        await informer.wait_synced(5)
    await informer.clear()
    assert (budget.used, len(informer.store), informer.has_synced) == (0, 0, False)
    async with working(informer.run()):
        await informer.wait_synced(5)
    assert [call[:2] for call in recorder.calls] == [("add", "p"), ("delete", "p"), ("add", "q")]


def test_namespaces_with_more_than_their_share_get_no_more_room():
    budget = CacheBudget(1_000_000, cluster="test")
    for number in range(60):
        budget.change(None, large(f"p{number}", namespace="noisy"))
    assert budget.has_room("noisy")
    budget.change(None, large("q", namespace="quiet"))
    for number in range(12):
        budget.change(None, large(f"r{number}", namespace="noisy"))
    assert not budget.has_room("noisy")
    assert budget.has_room("quiet")
    assert budget.has_room("new")


@pytest.mark.parametrize("namespaces", [1, 2, 3, 5])
def test_no_number_of_greedy_namespaces_fills_the_caches(namespaces):
    """Each creates objects while it may, one after another; then there is still room for another namespace."""
    budget = CacheBudget(10_000_000, cluster="test")
    for number in range(namespaces):
        created = 0
        while budget.has_room(f"greedy-{number}", 1_000):
            budget.change(None, large(f"p{created}", namespace=f"greedy-{number}", size=100))
            created += 1
    assert budget.used <= 0.93 * budget.limit
    assert budget.has_room("quiet", 50_000)


def test_objects_that_no_cache_shows_yet_take_room():
    """Otherwise many pods that are created at once could fill the caches, as each of them finds room."""
    budget = CacheBudget(1_000_000, cluster="test")
    for number in range(80):
        if budget.has_room("noisy", large("p").memory):
            with budget.growing("Pod", "noisy", f"p{number}", large("p").memory):
                pass
    for number in range(68):
        budget.change(None, large(f"p{number}", namespace="noisy"))
    assert 700_000 < budget.used < 750_000
    assert not budget.has_room("noisy", large("p").memory)
    budget.change(large("p0", namespace="noisy"), None)
    assert budget.has_room("noisy", large("p").memory)


def test_an_object_that_was_not_created_takes_no_room():
    budget = CacheBudget(1_000_000, cluster="test")
    for number in range(80):
        with pytest.raises(OSError, match="refused"), budget.growing("Pod", "ns", f"p{number}", 10_000):
            raise OSError("refused")
    assert budget.has_room("ns", 700_000)


def test_a_created_object_that_no_cache_shows_takes_room_for_half_a_minute(monkeypatch):
    """It may be deleted before a cache shows it."""
    now = [100.0]
    monkeypatch.setattr("controller_runtime.client.limits.time.monotonic", lambda: now[0])
    budget = CacheBudget(1_000_000, cluster="test")
    for number in range(80):
        with budget.growing("Pod", "ns", f"p{number}", 10_000):
            pass
    assert not budget.has_room("ns")
    now[0] += 31
    assert budget.has_room("ns", 700_000)


def test_lists_that_are_read_at_the_same_time_share_the_limit():
    budget = CacheBudget(50_000, cluster="test")
    with budget.reading() as first:
        for number in range(3):
            first(large(f"p{number}"))
        with budget.reading() as second:
            second(large("q"))
            with pytest.raises(CacheFull):
                second(large("q", size=20_000))
    with budget.reading() as third:
        for number in range(4):
            third(large(f"r{number}"))


def test_without_a_limit_nothing_is_counted():
    budget = CacheBudget(0, cluster="test")
    budget.change(None, large("p"))
    with budget.reading() as count:
        count(large("p"))
    assert budget.used == 0
    assert budget.has_room("ns")


@pytest.mark.parametrize(("text", "width"), [("a", 1), ("\U0001f600", 4)], ids=["ASCII", "wide"])
def test_memory_covers_what_labels_occupy(text, width):
    """Python stores a text with the width of its widest character."""
    labels = {f"k{number}": text * 50 for number in range(100)}
    assert from_dict({"kind": "Pod", "metadata": {"name": "p", "labels": labels}}).memory > 100 * 50 * width


_NAMED = {"name": "a" * 253, "namespace": "b" * 63, "uid": "c" * 36, "generateName": "d" * 248}
_MANY = 20_000


@pytest.mark.parametrize(
    "sent",
    [
        {"metadata": {**_NAMED, "labels": {f"\U0001f600{number}": "" for number in range(_MANY)}}},
        {"metadata": {**_NAMED, "finalizers": [f"f{number}" for number in range(_MANY)]}},
        {"metadata": {**_NAMED, "ownerReferences": [{"uid": f"{number}"} for number in range(_MANY)]}},
        {"metadata": _NAMED, **{f"field{number}": 0 for number in range(_MANY)}},
        {"metadata": _NAMED, "\U0001f600" * 100_000: 0},
        {"metadata": dict.fromkeys(["name", "namespace", "uid", "resourceVersion"], "\U0001f600" * 1024)},
    ],
    ids=["labels", "finalizers", "owners", "fields", "name of a field", "names"],
)
def test_memory_covers_what_a_server_may_send(sent):
    """A hostile server puts its bytes where they are not counted; also a few KiB that many objects repeat."""
    line = json.dumps({"type": "ADDED", "object": sent}).encode()
    kept = []
    tracemalloc.start()
    try:
        kept.append(decode_watch_event(line).object)
        occupied, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert occupied < kept[0].memory + 1000


@pytest.mark.parametrize(
    "sent",
    [
        *({"metadata": {field: "x" * 2000}} for field in ("name", "namespace", "uid", "resourceVersion")),
        {"metadata": {"creationTimestamp": "x" * 2000}},
        {"metadata": {"name": "p"}, "kind": "x" * 2000},
        {"metadata": {"name": "p"}, "apiVersion": "x" * 2000},
    ],
)
def test_an_object_with_a_huge_name_is_malformed(sent):
    """Names become keys of many indexes and records, and parts of log lines, which count no bytes."""
    with pytest.raises(msgspec.DecodeError, match="length"):
        from_dict(sent)
