"""Handlers get every change, in order, and none can affect another or the cache."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from controller_runtime.objects import Object, WatchEvent
from tests.unit.controller_runtime.cache.conftest import Recorder, make, pod

pytestmark = pytest.mark.looptime


async def test_a_failing_handler_does_not_affect_others(server, started):
    """An exception is counted; the next handler and the next event are processed."""
    server.lists = [([pod("a", 1)], "1")]
    informer = make(server, name="failing")

    def fail(_new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        raise RuntimeError("a bug")

    informer.add_handler(on_add=fail)
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("ADDED", pod("b", 2))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    labels = {"cluster": server.cluster, "resource": "failing"}
    assert REGISTRY.get_sample_value("virtual_node_handler_errors_total", labels) == 2


async def test_a_late_handler_gets_the_cache(server, started):
    """A handler added after the sync receives an add for everything cached."""
    server.lists = [([pod("a", 1), pod("b", 2)], "2")]
    informer = started(make(server))
    await server.watches.get()
    recorder = Recorder(informer)
    assert sorted(call[1] for call in recorder.calls) == ["a", "b"]


async def test_removed_handler_is_not_called(server, started):
    """Others are."""
    server.lists = [([], "1")]
    informer = make(server)
    seen: list[str] = []

    def note(new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        seen.append(new.name)

    registration = informer.add_handler(on_add=note)
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("ADDED", pod("b", 2))])
    await recorder.until(lambda: len(recorder.calls) == 1)
    registration.remove()
    registration.remove()
    feed.put_nowait([WatchEvent("ADDED", pod("c", 3))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    assert seen == ["b"]


async def test_handlers_may_be_added_and_removed_inside_handlers(server, started):
    """After a removal the next one is still called, and an added one gets nothing twice."""
    server.lists = [([], "1")]
    informer = make(server)
    late: list[Recorder] = []

    def once(_new: Object, _initial: bool) -> None:  # noqa: FBT001 - the handler's signature
        registration.remove()
        late.append(Recorder(informer))

    registration = informer.add_handler(on_add=once)
    recorder = Recorder(informer)
    started(informer)
    feed = await server.watches.get()
    feed.put_nowait([WatchEvent("ADDED", pod("a", 2)), WatchEvent("ADDED", pod("b", 3))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    await late[0].until(lambda: len(late[0].calls) >= 2)
    assert [call[1] for call in recorder.calls] == ["a", "b"]
    assert [call[1] for call in late[0].calls] == ["a", "b"]


async def test_deletion_carries_the_last_state(following):
    """DELETED delivers the object of the event; for an unknown one no handler is called."""
    recorder, feed = await following([([pod("a", 1)], "1")])
    feed.put_nowait([WatchEvent("DELETED", pod("x", 4)), WatchEvent("DELETED", pod("a", 5))])
    await recorder.until(lambda: len(recorder.calls) == 2)
    assert recorder.calls[-1] == ("delete", "a", "5")
    assert len(recorder.informer.store) == 0


async def test_handlers_cannot_modify_the_cache(server, started):
    """A handler may change the spec that it reads."""
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
    assert (found.name, found.spec) == ("a", {"nodeName": "n1", "containers": []})
