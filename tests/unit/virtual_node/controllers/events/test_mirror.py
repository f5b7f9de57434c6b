"""Events of the lower cluster are mirrored, also from servers that end watches early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from controller_runtime.api import names
from controller_runtime.client.client import Batch, ObjectList
from controller_runtime.client.reconnect_queue import Outage
from controller_runtime.errors import Expired, Forbidden
from controller_runtime.objects import Object, WatchEvent, from_dict
from tests.background import working
from virtual_node.controllers.events.mirror import EventMirror
from virtual_node.translate.pods import events

pytestmark = pytest.mark.looptime


def _event(uid: str, *, pod: str = "ours", pod_uid: str = "below", kind: str = "Warning") -> Object:
    return from_dict(
        {
            "metadata": {"name": uid, "namespace": "n", "uid": uid, "resourceVersion": "1"},
            "involvedObject": {"kind": "Pod", "namespace": "n", "name": pod, "uid": pod_uid},
            "type": kind,
            "reason": "R",
            "message": uid,
        }
    )


def _pod(uid: str) -> Object:
    return from_dict(
        {
            "kind": "Pod",
            "metadata": {
                "name": "ours",
                "namespace": "n",
                "uid": uid,
                "labels": {names.LABEL_UPPER_UID: "above"},
            },
            "spec": {"nodeName": "vn"},
        }
    )


class _Server:
    """Lists given events; every watch has one change and ends at once, regularly or with an error."""

    cluster = "a"

    def __init__(
        self, *there: Object, change: WatchEvent | None = None, error: Exception | None = None
    ) -> None:
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.there = list(there)
        self.asked = self.lists = 0
        self.read: list[Object] = []
        """The last list, as kept in memory."""
        self._change = change
        self._error = error

    async def list(self, *_what: Any, transform: Callable[[Object], Object], **_more: Any) -> ObjectList:
        self.asked += 1
        self.lists += 1
        self.read = [transform(event) for event in self.there]
        return ObjectList(self.read, "1")

    async def watch_batches(self, *_what: Any, **_more: Any) -> AsyncIterator[Batch]:
        self.asked += 1
        await asyncio.sleep(0.001)
        yield [] if self._change is None else [self._change]
        if self._error is not None:
            raise self._error


class _Copies:
    """The upper cluster, which has these events."""

    def __init__(self, *there: Any, error: Exception | None = None) -> None:
        self.there = there
        self._error = error

    async def list(self, *_what: Any, transform: Callable[[Object], Object], **_more: Any) -> None:
        for event in self.there:
            transform(from_dict(event))
        if self._error is not None:
            raise self._error


class _Mirroring:
    """A mirror of one pod's events, and the messages that it has mirrored."""

    def __init__(self, server: _Server, copied: _Copies | None = None) -> None:
        self.sent: list[str] = []
        self.upper, self.lower = {"above": _pod("above")}, {"ours": _pod("below")}
        recorder = SimpleNamespace(record=lambda event: self.sent.append(event["message"]))
        context: Any = SimpleNamespace(
            name="a",
            lower=server,
            upper=copied or _Copies(),
            nodes=["vn"],
            recorder=recorder,
            log=structlog.get_logger(),
        )
        lower = SimpleNamespace(get=lambda key: self.lower.get(key.removeprefix("n/")))
        pods: Any = SimpleNamespace(upper_pod=self.upper.get, lower=SimpleNamespace(store=lower))
        self.mirror = EventMirror(context, pods)

    async def run(self, seconds: float) -> list[str]:
        """Return what has been mirrored after some seconds."""
        async with working(self.mirror.run()) as task:
            await asyncio.sleep(seconds)
            assert not task.done()
        return self.sent


async def test_existing_and_new_events_are_mirrored():
    server = _Server(_event("old"), change=WatchEvent("ADDED", _event("new")))
    assert (await _Mirroring(server).run(0.05))[:2] == ["old", "new"]


async def test_events_of_other_pods_are_not_mirrored():
    """Of unmanaged pods, and of an earlier pod with the same name."""
    server = _Server(_event("stranger", pod="other"), _event("before", pod_uid="earlier"), _event("ours"))
    assert await _Mirroring(server).run(0.05) == ["ours"]


async def test_listed_events_of_other_pods_are_not_kept_in_memory():
    """A cluster keeps events for an hour, most of them of pods that are gone, and lists them again after an outage."""
    server = _Server(*(_event(f"gone-{number}", pod="gone") for number in range(100)), _event("ours"))
    assert await _Mirroring(server).run(0.05) == ["ours"]
    assert len({id(event) for event in server.read}) == 2


async def test_an_event_that_is_read_before_its_pod_is_mirrored():
    """The watches of pods and of events are two connections."""
    mirroring = _Mirroring(_Server(change=WatchEvent("ADDED", _event("new", pod="late"))))
    async with working(mirroring.mirror.run()):
        await asyncio.sleep(0.01)
        mirroring.lower["late"] = mirroring.lower["ours"]
        await asyncio.sleep(3)
    assert "new" in mirroring.sent


async def test_deletion_of_an_event_is_ignored():
    """Servers delete events after an hour."""
    server = _Server(change=WatchEvent("DELETED", _event("old")))
    assert await _Mirroring(server).run(0.05) == []


async def test_warnings_overtake_normal_events():
    """Also in a burst of a thousand Normal ones."""
    burst = [_event(f"scheduled-{number}", kind="Normal") for number in range(1000)]
    sent = await _Mirroring(_Server(*burst, _event("failed"))).run(1)
    assert "failed" in sent[:51]
    assert 50 <= len(sent) <= 100


async def test_missing_history_is_listed_again():
    """Events meanwhile are mirrored, too."""
    server = _Server(error=Expired("too old", code=410))
    mirroring = _Mirroring(server)
    async with working(mirroring.mirror.run()):
        await asyncio.sleep(0.0005)
        assert server.lists == 1
        server.there.append(_event("meanwhile"))
        await asyncio.sleep(5)
    assert "meanwhile" in mirroring.sent


@pytest.mark.parametrize("error", [None, Expired("too old", code=410)])
async def test_a_server_that_ends_watches_at_once_gets_no_request_loop(error: Exception | None):
    """For example because of a proxy, or because its history always expires."""
    server = _Server(error=error)
    await _Mirroring(server).run(60)
    assert 2 <= server.asked <= 30


async def test_waiting_normal_events_of_pods_that_are_gone_are_dropped():
    """After a burst, thousands wait, and ``kubectl describe`` no longer shows the events of a deleted pod."""
    mirroring = _Mirroring(_Server(*(_event(f"e-{number}", kind="Normal") for number in range(200))))
    async with working(mirroring.mirror.run()):
        await asyncio.sleep(1)
        mirroring.upper.clear()
        await asyncio.sleep(1)
        sent = len(mirroring.sent)
        await asyncio.sleep(60)
    assert 50 <= sent < 200
    assert len(mirroring.sent) == sent


def _copy(lower: Object, **changes: Any) -> dict[str, Any]:
    """Return the upper event that was made for a lower event, as a server returns it."""
    made = events.upper_event(lower.to_dict(), _pod("above").to_dict(), node_name="vn", namespace="n")
    return {"firstTimestamp": None, "eventTime": None, **made, **changes}


@pytest.mark.parametrize(
    ("changes", "is_written"),
    [
        ({}, False),
        ({"involvedObject": {}, "source": {"component": "else"}}, False),
        ({"count": 2}, True),
        ({"lastTimestamp": "2026-01-02T03:04:05Z"}, True),
        ({"series": {"count": 2}}, True),
        ({"message": "else"}, True),
        ({"message": 10**3000, "count": "x", "series": [1e300], "type": None}, True),
        ({"metadata": {"name": "ours.uid", "namespace": "of-others"}}, True),
        ({"metadata": {}}, True),
    ],
)
@pytest.mark.parametrize("kind", ["Warning", "Normal"])
async def test_only_events_that_differ_from_their_copy_are_written(
    *, kind: str, changes: dict[str, Any], is_written: bool
):
    """After a restart, nothing is written if nothing changed; a tenant's event is no reason to skip another."""
    event = _event("uid", kind=kind)
    server = _Server(event, _event("new", kind=kind))
    sent = await _Mirroring(server, _Copies(_copy(event, **changes))).run(0.05)
    assert sent == (["uid", "new"] if is_written else ["new"])


async def test_events_are_written_again_if_their_copies_cannot_be_listed():
    """For example until the chart of a new version grants the right."""
    copies = _Copies(_copy(_event("listed")), error=Forbidden("no right", code=403))
    assert await _Mirroring(_Server(_event("listed"), _event("unlisted")), copies).run(0.05) == ["unlisted"]
