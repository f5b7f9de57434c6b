"""Frequent occurrences are counted, combined or limited, without an Event for each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import pytest

from controller_runtime.events import EventCorrelator, Happening
from controller_runtime.util.buffers import Recent
from tests.unit.controller_runtime.events.recording import NOW, POD, Server, dropped, recorder_for, running

pytestmark = pytest.mark.looptime


class TestCounting:
    """Repetitions of one Event."""

    async def test_repetition_is_a_patch_of_the_count(self) -> None:
        """The same Event gets a higher count and a later time."""
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
        assert server.verbs == ["create", "patch", "patch"]
        event = server.only()
        assert event["count"] == 3
        assert event["firstTimestamp"] == "2026-01-02T03:04:05Z"
        assert event["lastTimestamp"] == "2026-01-02T03:04:25Z"

    async def test_burst_is_written_once_in_its_latest_state(self) -> None:
        """Occurrences while the Event waits cause no further request."""
        server = Server()
        recorder = recorder_for(server)
        for _ in range(20):
            recorder.event(POD, "Normal", "Pulling", "x")
        async with running(recorder):
            pass
        assert server.verbs == ["create"]
        assert server.only()["count"] == 20

    async def test_occurrence_during_a_request_is_not_lost(self) -> None:
        """It is written afterwards, never concurrently."""
        server = Server()
        recorder = recorder_for(server)
        server.gate.clear()
        async with running(recorder):
            recorder.event(POD, "Normal", "Pulling", "x")
            await server.called(1)
            recorder.event(POD, "Normal", "Pulling", "x")
            assert server.verbs == ["create"]
            server.gate.set()
            await server.called(2)
        assert server.verbs == ["create", "patch"]
        assert server.only()["count"] == 2

    async def test_expired_event_is_created_again(self) -> None:
        """With its count, after its hour."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            await server.called(1)
            server.events.clear()
            recorder.event(POD, "Normal", "A", "x")
        assert server.verbs == ["create", "patch", "create"]
        assert server.only()["count"] == 2

    async def test_any_difference_is_another_event(self) -> None:
        """Object, type, reason, message or part of the object."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            recorder.event(POD, "Warning", "A", "x")
            recorder.event(POD, "Normal", "B", "x")
            recorder.event(POD, "Normal", "A", "y")
            recorder.event(POD | {"uid": "u2"}, "Normal", "A", "x")
            recorder.event(POD | {"fieldPath": "spec.containers{a}"}, "Normal", "A", "x")
        assert len(server.events) == 6


class TestAggregation:
    """Many similar Events."""

    async def test_more_than_ten_similar_become_one(self) -> None:
        """After ten messages of one reason further ones share one combined Event."""
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
        """After them a new message has an Event of its own again."""
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
    """Objects with too many Events."""

    async def test_burst_of_25_then_one_in_five_minutes(self) -> None:
        """Other objects are not affected."""
        correlator = EventCorrelator(component="c")

        def tell(at: float, pod: Mapping[str, str] = POD) -> bool:
            return correlator.correlate(Happening(dict(pod), "Normal", "A", "x"), at=at, now=NOW) is not None

        assert [tell(0) for _ in range(27)] == [True] * 25 + [False] * 2
        assert tell(0, POD | {"uid": "other"})
        assert not tell(299)
        assert [tell(301), tell(301), tell(601), tell(601)] == [True, False, True, False]

    async def test_filtered_occurrences_are_counted(self) -> None:
        """The next Event that passes has the complete count, and the metric counts the dropped ones."""
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
        """The latest 4,096 keys are kept, and recently used ones stay."""
        recent: Recent[int, int] = Recent(3)
        for key in range(3):
            recent[key] = key
        assert recent.touch(0) == 0
        recent[3] = 3
        assert list(recent) == [2, 0, 3]
        assert recent.touch(1) is None
