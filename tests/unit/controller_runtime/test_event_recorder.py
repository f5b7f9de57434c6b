from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controller_runtime import objects, resources
from controller_runtime.client import PatchType
from controller_runtime.errors import (
    AlreadyExists,
    ApiError,
    ConnectionFailed,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from controller_runtime.event_correlator import EventCorrelator, Happening, Recent
from controller_runtime.event_recorder import EventRecorder
from controller_runtime.resources import Resource

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "namespace": "ns",
    "name": "web",
    "uid": "u1",
    "resourceVersion": "7",
}


class Server:
    """The Events of an apiserver, with scripted trouble."""

    def __init__(self, cluster: str = "test") -> None:
        self.cluster = cluster
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.trouble: list[Exception | None] = []
        """What the next requests raise; None lets one through."""
        self.gate = asyncio.Event()
        self.gate.set()
        self._changed = asyncio.Event()

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        """POST."""
        await self._enter("create", resource)
        key = (namespace or "", body["metadata"]["name"])
        if key in self.events:
            raise AlreadyExists("exists", code=409, reason="AlreadyExists")
        self.events[key] = copy.deepcopy(dict(body))
        return dict(body)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        *,
        namespace: str | None = None,
        patch_type: PatchType = PatchType.STRATEGIC,
    ) -> dict[str, Any]:
        """PATCH."""
        await self._enter("patch", resource)
        assert patch_type is PatchType.MERGE
        key = (namespace or "", name)
        if key not in self.events:
            raise NotFound("gone", code=404, reason="NotFound")
        self.events[key] |= patch
        return self.events[key]

    async def _enter(self, verb: str, resource: Resource) -> None:
        assert resource is resources.EVENTS
        self.calls.append(verb)
        self._changed.set()
        await self.gate.wait()
        error = self.trouble.pop(0) if self.trouble else None
        if error is not None:
            raise error

    async def called(self, times: int) -> None:
        """Wait until so many requests have come in, and those before the last are answered."""
        while len(self.calls) < times:
            self._changed.clear()
            await self._changed.wait()

    def only(self) -> dict[str, Any]:
        """The one Event there is."""
        (event,) = self.events.values()
        return event


@contextlib.asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[None]:
    """Run a recorder; leaving cancels it and waits until it has flushed."""
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)  # its first step
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def dropped(cluster: str, cause: str) -> float:
    """The counter of dropped Events."""
    labels = {"cluster": cluster, "cause": cause}
    return REGISTRY.get_sample_value("virtual_node_events_dropped_total", labels) or 0.0


def recorder_for(server: Server, **options: Any) -> EventRecorder:
    """A recorder whose calendar stands still."""
    options.setdefault("now", lambda: NOW)
    return EventRecorder(server, component="virtual-node", host="node-1", **options)


pytestmark = pytest.mark.looptime


class TestShape:
    """What an Event looks like."""

    async def test_event_has_every_field_kubectl_describe_reads(self) -> None:
        """An Event names its object, reason, times, count and source as client-go's recorder does."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Warning", "FailedMount", "no volume", annotations={"a": "b"})
        assert server.only() == {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "web.1886caf21ca08a70", "namespace": "ns", "annotations": {"a": "b"}},
            "involvedObject": POD,
            "type": "Warning",
            "reason": "FailedMount",
            "message": "no volume",
            "source": {"component": "virtual-node", "host": "node-1"},
            "firstTimestamp": "2026-01-02T03:04:05Z",
            "lastTimestamp": "2026-01-02T03:04:05Z",
            "count": 1,
            "reportingComponent": "virtual-node",
            "reportingInstance": "node-1",
        }

    @pytest.mark.parametrize("form", ["cached", "plain", "reference"])
    async def test_object_may_be_given_in_any_form(self, form: str) -> None:
        """A cached object, a plain dict and an ObjectReference tell the same story."""
        plain = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"namespace": "ns", "name": "web", "uid": "u1", "resourceVersion": "7"},
            "spec": {"nodeName": "n"},
        }
        forms: dict[str, Mapping[str, Any] | objects.Object] = {
            "cached": objects.from_dict(plain),
            "plain": plain,
            "reference": POD,
        }
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(forms[form], "Normal", "Started", "x", field_path="spec.containers{app}")
        assert server.only()["involvedObject"] == POD | {"fieldPath": "spec.containers{app}"}

    async def test_cluster_scoped_objects_events_are_in_default(self) -> None:
        """An Event about a Node goes to namespace default and its reference names none."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event({"kind": "Node", "apiVersion": "v1", "name": "n"}, "Normal", "NodeReady", "x")
        assert server.only()["metadata"]["namespace"] == "default"
        assert "namespace" not in server.only()["involvedObject"]

    async def test_names_are_unique_in_the_same_microsecond_and_always_valid(self) -> None:
        """Two Events at one instant, and objects whose name is no Event name, all get a name of their own."""
        server = Server()
        recorder = recorder_for(server)
        names = ["web", "web", "system:node", "x" * 253]
        async with running(recorder):
            for index, name in enumerate(names):
                recorder.event(POD | {"name": name, "kind": f"Kind{index}"}, "Normal", "A", "x")
        assert len(server.events) == len(names)
        assert all(len(name) <= 253 and ":" not in name for _, name in server.events)

    async def test_long_messages_are_cut(self) -> None:
        """A message longer than 1,024 characters ends in an ellipsis."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x" * 5000)
        assert len(server.only()["message"]) == 1024
        assert server.only()["message"].endswith("x ...")

    async def test_event_about_nothing_is_an_error_in_the_log_only(self) -> None:
        """An object without a kind or name costs a line in the log, not the caller."""
        server = Server()
        recorder = recorder_for(server)
        with capture_logs() as logs:
            recorder.event({}, "Normal", "A", "x")
            recorder.record({})
        assert [line["log_level"] for line in logs] == ["error", "error"]


class TestCounting:
    """The same thing again."""

    async def test_repetition_is_a_patch_of_the_count(self) -> None:
        """What happened before becomes a higher count and a later time of the same Event."""
        server = Server()
        clock = [NOW]
        recorder = recorder_for(server, now=lambda: clock[0])
        async with running(recorder):
            recorder.event(POD, "Warning", "BackOff", "again")
            await server.called(1)
            for _ in range(2):
                clock[0] += timedelta(seconds=10)
                recorder.event(POD | {"resourceVersion": "8"}, "Warning", "BackOff", "again")
                await asyncio.sleep(1)
        assert server.calls == ["create", "patch", "patch"]
        event = server.only()
        assert event["count"] == 3
        assert event["firstTimestamp"] == "2026-01-02T03:04:05Z"
        assert event["lastTimestamp"] == "2026-01-02T03:04:25Z"

    async def test_burst_is_written_once_in_its_latest_state(self) -> None:
        """Occurrences that come while the Event waits cost no request of their own."""
        server = Server()
        recorder = recorder_for(server)
        for _ in range(20):
            recorder.event(POD, "Normal", "Pulling", "x")
        async with running(recorder):
            pass
        assert server.calls == ["create"]
        assert server.only()["count"] == 20

    async def test_occurrence_during_a_request_is_not_lost(self) -> None:
        """What comes while the Event is being written is written after it, never at the same time."""
        server = Server()
        recorder = recorder_for(server)
        server.gate.clear()
        async with running(recorder):
            recorder.event(POD, "Normal", "Pulling", "x")
            await server.called(1)
            recorder.event(POD, "Normal", "Pulling", "x")
            assert server.calls == ["create"]
            server.gate.set()
            await server.called(2)
        assert server.calls == ["create", "patch"]
        assert server.only()["count"] == 2

    async def test_expired_event_is_made_again(self) -> None:
        """An Event whose hour is over is created anew with its count."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            await server.called(1)
            server.events.clear()
            recorder.event(POD, "Normal", "A", "x")
        assert server.calls == ["create", "patch", "create"]
        assert server.only()["count"] == 2

    async def test_anything_different_is_another_event(self) -> None:
        """Another object, type, reason, message or part of the object is another Event."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            recorder.event(POD, "Warning", "A", "x")
            recorder.event(POD, "Normal", "B", "x")
            recorder.event(POD, "Normal", "A", "y")
            recorder.event(POD | {"uid": "u2"}, "Normal", "A", "x")
            recorder.event(POD, "Normal", "A", "x", field_path="spec.containers{a}")
        assert len(server.events) == 6


class TestAggregation:
    """Many similar things."""

    async def test_more_than_ten_similar_become_one(self) -> None:
        """After ten messages of one reason the further ones share an Event that says so and counts."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            for index in range(14):
                recorder.event(POD, "Warning", "Unhealthy", f"probe {index}")
        assert len(server.events) == 11
        combined = [event for event in server.events.values() if event["message"].startswith("(combined")]
        assert [(event["message"], event["count"]) for event in combined] == [
            ("(combined from similar events): probe 13", 4)
        ]

    def test_known_messages_keep_their_event(self) -> None:
        """One of the first ten messages still counts on its own Event."""
        correlator = EventCorrelator(component="c")
        happenings = [Happening(POD, "Normal", "A", f"m{index}") for index in range(11)]
        series = [correlator.correlate(happening, at=0, now=NOW) for happening in happenings]
        assert correlator.correlate(happenings[0], at=1, now=NOW) is series[0]

    def test_ten_quiet_minutes_end_the_aggregation(self) -> None:
        """Ten minutes after the last of them a new message has an Event of its own again."""
        correlator = EventCorrelator(component="c")
        for index in range(12):
            correlator.correlate(Happening(POD, "Normal", "A", f"m{index}"), at=index, now=NOW)
        within = correlator.correlate(Happening(POD, "Normal", "A", "fresh"), at=611, now=NOW)
        after = correlator.correlate(Happening(POD, "Normal", "A", "fresher"), at=611 + 601, now=NOW)
        assert within is not None
        assert within.body["message"] == "(combined from similar events): fresh"
        assert after is not None
        assert after.body["message"] == "fresher"


class TestSpam:
    """Objects that talk too much."""

    async def test_burst_of_25_then_one_in_five_minutes(self) -> None:
        """An object has 25 Events at once and one more every five minutes; others are not touched by that."""
        correlator = EventCorrelator(component="c")

        def tell(at: float, pod: Mapping[str, str] = POD) -> bool:
            return correlator.correlate(Happening(dict(pod), "Normal", "A", "x"), at=at, now=NOW) is not None

        assert [tell(0) for _ in range(27)] == [True] * 25 + [False] * 2
        assert tell(0, POD | {"uid": "other"})
        assert not tell(299)
        assert [tell(301), tell(301), tell(601), tell(601)] == [True, False, True, False]

    async def test_filtered_occurrences_are_counted_all_the_same(self) -> None:
        """The next Event that passes carries the true count, and the metric knows what was held back."""
        server = Server("spam")
        recorder = recorder_for(server)
        async with running(recorder):
            for _ in range(30):
                recorder.event(POD, "Normal", "A", "x")
            await asyncio.sleep(301)
            recorder.event(POD, "Normal", "A", "x")
        assert server.only()["count"] == 31
        assert dropped("spam", "spam") == 5

    def test_memory_is_bounded(self) -> None:
        """Only the latest 4,096 are remembered, and what is used stays."""
        recent: Recent[int, int] = Recent(3)
        for key in range(3):
            recent[key] = key
        assert recent.touch(0) == 0
        recent[3] = 3
        assert list(recent) == [2, 0, 3]
        assert recent.touch(1) is None


class TestRecord:
    """Events made elsewhere."""

    EVENT: Mapping[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.1", "namespace": "ns"},
        "involvedObject": POD,
        "type": "Normal",
        "reason": "Pulled",
        "message": "x",
        "count": 3,
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }

    async def test_is_created_then_followed(self) -> None:
        """A complete Event is created as it is; its next state is a patch; the same state again is nothing."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.record(dict(self.EVENT))
            await server.called(1)
            recorder.record(dict(self.EVENT) | {"count": 4})
            await server.called(2)
            recorder.record(dict(self.EVENT) | {"count": 4})
        assert server.calls == ["create", "patch"]
        assert server.only() == dict(self.EVENT) | {"count": 4}

    async def test_existing_one_is_brought_up_to_date(self) -> None:
        """After a restart an Event that is there already is patched, not doubled."""
        server = Server()
        server.events["ns", "web.1"] = dict(self.EVENT)
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.record(dict(self.EVENT) | {"count": 9})
        assert server.calls == ["create", "patch"]
        assert server.only()["count"] == 9

    async def test_written_ones_are_not_kept_in_memory(self) -> None:
        """Of a mirrored Event only a fingerprint is remembered, and the Event may still change later."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.record(dict(self.EVENT))
            await server.called(1)
            await asyncio.sleep(1)
            assert [series.body for series in recorder._recorded.values()] == [{}]
            recorder.record(dict(self.EVENT))
            assert [series.body for series in recorder._recorded.values()] == [{}]
            recorder.record(dict(self.EVENT) | {"message": "y"})
        assert server.only()["message"] == "y"

    async def test_newer_state_during_a_request_is_written(self) -> None:
        """A state that comes while an older one is being written is written after it."""
        server = Server()
        recorder = recorder_for(server)
        server.gate.clear()
        async with running(recorder):
            recorder.record(dict(self.EVENT))
            await server.called(1)
            recorder.record(dict(self.EVENT) | {"count": 5})
            server.gate.set()
        assert server.calls == ["create", "patch"]
        assert server.only()["count"] == 5

    async def test_is_neither_aggregated_nor_filtered(self) -> None:
        """Its own recorder did that: fifty Events of one object are fifty Events."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            for index in range(50):
                recorder.record({**self.EVENT, "metadata": {"name": f"web.{index}", "namespace": "ns"}})
        assert len(server.events) == 50


def terminating() -> Forbidden:
    """How an apiserver refuses to create in a namespace that is being deleted."""
    causes = [{"reason": "NamespaceTerminating", "message": "namespace ns is being terminated"}]
    return Forbidden("forbidden", code=403, reason="Forbidden", status={"details": {"causes": causes}})


class TestTrouble:
    """A server that does not take Events."""

    @pytest.mark.parametrize(
        "error",
        [
            Unavailable("down", code=503),
            ConnectionFailed("refused"),
            TooManyRequests("slow down", code=429, retry_after=20),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_is_tried_again(self, error: ApiError) -> None:
        """Trouble that passes delays an Event and loses none; the server's own wish is honoured."""
        server = Server()
        server.trouble = [error, error]
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            await server.called(3)
        assert server.calls == ["create"] * 3
        assert server.only()["count"] == 1
        assert asyncio.get_running_loop().time() >= 2 * (error.retry_after or 0.5)

    async def test_create_whose_answer_was_lost_is_not_doubled(self) -> None:
        """An Event that was created although the answer never came is found by its name."""
        server = Server()
        recorder = recorder_for(server)
        real = server.create

        async def create_and_lose(*args: Any, **options: Any) -> dict[str, Any]:
            server.create = real  # type: ignore[method-assign]
            await real(*args, **options)
            raise ConnectionFailed("reset")

        server.create = create_and_lose  # type: ignore[method-assign]
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            await server.called(3)
        assert server.calls == ["create", "create", "patch"]
        assert server.only()["count"] == 1

    async def test_is_given_up_after_twelve_tries(self) -> None:
        """An Event that twelve tries could not write is dropped and counted; the next is written."""
        server = Server("twelve")
        server.trouble = [Unavailable("down", code=503)] * 12
        recorder = recorder_for(server, workers=1)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            recorder.event(POD, "Normal", "B", "x")
            await server.called(13)
        assert [event["reason"] for event in server.events.values()] == ["B"]
        assert dropped("twelve", "unanswered") == 1

    @pytest.mark.parametrize(
        "error", [terminating(), NotFound("no namespace", code=404)], ids=["terminating", "gone"]
    )
    async def test_vanishing_namespace_is_no_news(self, error: ApiError) -> None:
        """An Event for a namespace that is going or gone is dropped quietly."""
        server = Server("gone")
        server.trouble = [error]
        recorder = recorder_for(server)
        with capture_logs() as logs:
            async with running(recorder):
                recorder.event(POD, "Normal", "A", "x")
        assert server.calls == ["create"]
        assert [line for line in logs if line["log_level"] != "debug"] == []

    async def test_missing_right_is_told_once(self) -> None:
        """A refusal is not tried again, and warned of once however many Events it concerns."""
        server = Server("refused")
        server.trouble = [Forbidden("events is forbidden", code=403, reason="Forbidden") for _ in range(3)]
        recorder = recorder_for(server)
        with capture_logs() as logs:
            async with running(recorder):
                for reason in "ABC":
                    recorder.event(POD, "Normal", reason, "x")
        assert server.calls == ["create"] * 3
        assert len([line for line in logs if line["log_level"] == "warning"]) == 1
        assert dropped("refused", "rejected") == 3

    async def test_unexpected_error_does_not_end_the_recorder(self) -> None:
        """A bug in writing one Event costs that Event only."""
        server = Server()
        server.trouble = [KeyError("bug")]
        recorder = recorder_for(server, workers=1)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            recorder.event(POD, "Normal", "B", "x")
        assert [event["reason"] for event in server.events.values()] == ["B"]


class TestQueue:
    """More Events than the server takes."""

    async def test_oldest_normal_events_make_room(self) -> None:
        """A full queue drops the oldest Normal Event; Warnings stay and are written first."""
        server = Server("full")
        recorder = recorder_for(server, capacity=4, workers=1)
        recorder.event(POD, "Warning", "W1", "x")
        for reason in ("N1", "N2", "N3", "N4"):
            recorder.event(POD, "Normal", reason, "x")
        recorder.event(POD, "Warning", "W2", "x")
        async with running(recorder):
            pass
        assert [event["reason"] for event in server.events.values()] == ["W1", "W2", "N3", "N4"]
        assert dropped("full", "overflow") == 2

    async def test_oldest_warning_makes_room_among_warnings(self) -> None:
        """When only Warnings wait, the oldest goes, and a Normal Event finds no room."""
        server = Server()
        recorder = recorder_for(server, capacity=2)
        for reason in ("W1", "W2", "W3"):
            recorder.event(POD, "Warning", reason, "x")
        recorder.event(POD, "Normal", "N", "x")
        async with running(recorder):
            pass
        assert [event["reason"] for event in server.events.values()] == ["W2", "W3"]

    async def test_dropped_event_is_written_when_it_happens_again(self) -> None:
        """An Event that had to make room comes back with its true count."""
        server = Server()
        recorder = recorder_for(server, capacity=1)
        for reason in ("A", "B", "A"):
            recorder.event(POD, "Normal", reason, "x")
        async with running(recorder):
            pass
        assert [(event["reason"], event["count"]) for event in server.events.values()] == [("A", 2)]


class TestEnd:
    """run() being cancelled."""

    async def test_what_waits_is_flushed(self) -> None:
        """Events told before the end are written although the recorder is being cancelled."""
        server = Server()
        recorder = recorder_for(server)
        for index in range(100):
            recorder.event(POD | {"uid": str(index)}, "Normal", "A", "x")
        task = asyncio.create_task(recorder.run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(server.events) == 100

    async def test_flush_is_bounded(self) -> None:
        """A server that does not answer holds the end up for 1.5 seconds, no more; the rest is counted as lost."""
        server = Server("hung")
        server.gate.clear()
        recorder = recorder_for(server, workers=2)
        for index in range(10):
            recorder.event(POD | {"uid": str(index)}, "Normal", "A", "x")
        task = asyncio.create_task(recorder.run())
        await server.called(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() == pytest.approx(1.5, abs=0.1)
        assert dropped("hung", "shutdown") == 10
