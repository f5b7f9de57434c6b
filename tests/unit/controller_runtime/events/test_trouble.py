"""A server that refuses or delays Events: what can be delayed is delayed, the rest is counted as dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import (
    ApiError,
    ConfigError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from tests.thorough import size
from tests.unit.controller_runtime.events.recording import POD, Server, dropped, recorder_for, running

pytestmark = pytest.mark.looptime


def terminating() -> Forbidden:
    """Return the error of a create in a namespace that is being deleted."""
    causes = [{"reason": "NamespaceTerminating", "message": "namespace ns is being terminated"}]
    return Forbidden("forbidden", code=403, reason="Forbidden", status={"details": {"causes": causes}})


class TestTrouble:
    """A server that does not accept Events."""

    @pytest.mark.parametrize(
        "error",
        [
            Unavailable("down", code=503),
            ConnectionFailed("refused"),
            TooManyRequests("slow down", code=429, retry_after=20),
            Conflict("the quota was changed", code=409),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_is_retried(self, error: ApiError) -> None:
        """A temporary error delays an Event; the server's Retry-After is respected."""
        server = Server()
        server.trouble = [error, error]
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            await server.called(3)
        assert server.verbs == ["create"] * 3
        assert server.only()["count"] == 1
        assert asyncio.get_running_loop().time() >= 2 * (error.retry_after or 0.5)

    async def test_create_with_a_lost_response_is_not_doubled(self) -> None:
        """The Event is found by its name."""
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
        assert server.verbs == ["create", "create", "patch"]
        assert server.only()["count"] == 1

    async def test_is_dropped_after_twelve_tries(self) -> None:
        """And counted; the next is written."""
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
        "error",
        [
            ConnectionFailed("refused"),
            Unauthorized("expired", code=401),
            ConfigError("plugin: exit code 1"),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_waits_for_the_end_of_an_outage(self, error: Exception) -> None:
        """Without a limit of tries: no other Event could be written instead."""
        server = Server("outage")
        server.trouble = [error] * 100
        recorder = recorder_for(server, workers=1)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            recorder.event(POD, "Normal", "B", "x")
            await server.called(102)
        assert [event["reason"] for event in server.events.values()] == ["A", "B"]
        assert asyncio.get_running_loop().time() >= 400  # no busy loop

    @pytest.mark.parametrize(
        "error", [terminating(), NotFound("no namespace", code=404)], ids=["terminating", "gone"]
    )
    async def test_event_for_a_deleted_namespace_is_dropped_silently(self, error: ApiError) -> None:
        server = Server("gone")
        server.trouble = [error]
        recorder = recorder_for(server)
        with capture_logs() as logs:
            async with running(recorder):
                recorder.event(POD, "Normal", "A", "x")
        assert server.verbs == ["create"]
        assert [line for line in logs if line["log_level"] != "debug"] == []

    async def test_missing_right_is_logged_once(self) -> None:
        """A refusal is not retried, for any number of Events."""
        server = Server("refused")
        server.trouble = [Forbidden("events is forbidden", code=403, reason="Forbidden") for _ in range(3)]
        recorder = recorder_for(server)
        with capture_logs() as logs:
            async with running(recorder):
                for reason in "ABC":
                    recorder.event(POD, "Normal", reason, "x")
        assert server.verbs == ["create"] * 3
        assert len([line for line in logs if line["log_level"] == "warning"]) == 1
        assert dropped("refused", "rejected") == 3

    async def test_unexpected_error_does_not_end_the_recorder(self) -> None:
        """It costs that Event only."""
        server = Server()
        server.trouble = [KeyError("bug")]
        recorder = recorder_for(server, workers=1)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x")
            recorder.event(POD, "Normal", "B", "x")
        assert [event["reason"] for event in server.events.values()] == ["B"]


class TestQueue:
    """More Events than the server accepts."""

    async def test_oldest_normal_event_is_dropped_first(self) -> None:
        """Warnings stay in a full queue and are written first."""
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

    async def test_oldest_warning_is_dropped_among_warnings(self) -> None:
        """A new Normal Event is dropped then."""
        server = Server()
        recorder = recorder_for(server, capacity=2)
        for reason in ("W1", "W2", "W3"):
            recorder.event(POD, "Warning", reason, "x")
        recorder.event(POD, "Normal", "N", "x")
        async with running(recorder):
            pass
        assert [event["reason"] for event in server.events.values()] == ["W2", "W3"]

    async def test_a_namespace_displaces_only_its_own_events(self) -> None:
        """A tenant with a thousand broken pods."""
        server = Server()
        recorder = recorder_for(server, capacity=10)
        for index in range(3):
            recorder.event(POD | {"namespace": "default"}, "Warning", f"quiet-{index}", "x")
        for index in range(1000):
            recorder.event(POD | {"uid": str(index)}, "Warning", f"flood-{index}", "x")
        async with running(recorder):
            pass
        written = [event["reason"] for event in server.events.values()]
        assert [reason for reason in written if reason.startswith("quiet")] == [
            "quiet-0",
            "quiet-1",
            "quiet-2",
        ]
        assert len(written) == 10

    async def test_namespaces_take_turns(self) -> None:
        """A tenant's event does not wait behind the hundreds of another."""
        server = Server()
        recorder = recorder_for(server, workers=1)
        for index in range(500):
            recorder.event(POD | {"uid": str(index)}, "Warning", "flood", "x")
        recorder.event(POD | {"namespace": "default"}, "Warning", "quiet", "x")
        async with running(recorder):
            await server.called(2)
        assert [event["reason"] for event in server.events.values()][:2] == ["flood", "quiet"]

    async def test_a_burst_is_not_dropped(self) -> None:
        """Two reports about each of 5,000 pods."""
        server, pods = Server("burst"), size(1_000, 5_000)
        recorder = recorder_for(server)
        for index in range(pods):
            for reason in ("A", "B"):
                recorder.event(POD | {"uid": str(index)}, "Warning", reason, "x")
        async with running(recorder):
            await server.called(2 * pods)
        assert dropped("burst", "overflow") == 0

    async def test_a_caller_can_wait_until_little_is_queued(self) -> None:
        """So that what it records displaces nothing."""
        server = Server()
        server.gate.clear()
        recorder = recorder_for(server)
        await recorder.wait_for_room()
        for index in range(200):
            recorder.event(POD | {"uid": str(index)}, "Warning", "A", "x")
        async with running(recorder):
            waiter = asyncio.create_task(recorder.wait_for_room())
            await asyncio.sleep(1)
            assert not waiter.done()
            server.gate.set()
            await waiter
            assert len(server.events) > 100

    async def test_dropped_event_is_written_when_it_happens_again(self) -> None:
        """With its complete count."""
        server = Server()
        recorder = recorder_for(server, capacity=1)
        for reason in ("A", "B", "A"):
            recorder.event(POD, "Normal", reason, "x")
        async with running(recorder):
            pass
        assert [(event["reason"], event["count"]) for event in server.events.values()] == [("A", 2)]


class TestEnd:
    """Cancellation of run()."""

    async def test_queued_events_are_flushed_at_the_end(self) -> None:
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
        """A silent server delays the end by at most 1.5 seconds; the rest is counted as dropped."""
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
