"""Events made elsewhere are written unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.controller_runtime.events.recording import POD, Server, recorder_for, running

pytestmark = pytest.mark.looptime


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
        """A complete Event is created unchanged; its next state is a patch; an equal state is no request."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.record(dict(self.EVENT))
            await server.called(1)
            recorder.record(dict(self.EVENT) | {"count": 4})
            await server.called(2)
            recorder.record(dict(self.EVENT) | {"count": 4})
        assert server.verbs == ["create", "patch"]
        assert server.only() == dict(self.EVENT) | {"count": 4}

    async def test_existing_one_is_updated(self) -> None:
        """After a restart an existing Event is patched, not doubled."""
        server = Server()
        server.server.put("events", self.EVENT)
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.record(dict(self.EVENT) | {"count": 9})
        assert server.verbs == ["create", "patch"]
        assert server.only()["count"] == 9

    async def test_routine_events_do_not_displace_recent_warnings(self) -> None:
        """The latest fifty of each type are shown."""
        recorder = recorder_for(Server())
        for count in range(1, 60):  # one Event, which is shown once
            recorder.record(dict(self.EVENT) | {"type": "Warning", "reason": "Failed", "count": count})
        for number in range(100):
            metadata = {"name": f"web.{number + 2}", "namespace": "ns"}
            recorder.record(dict(self.EVENT) | {"metadata": metadata})
        assert len(recorder.recent) == 51
        assert [event["reason"] for event in recorder.recent if event["type"] == "Warning"] == ["Failed"]

    async def test_written_ones_are_not_kept_in_memory(self) -> None:
        """Only a fingerprint of a mirrored Event is kept, and later changes are still detected."""
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
        """Afterwards."""
        server = Server()
        recorder = recorder_for(server)
        server.gate.clear()
        async with running(recorder):
            recorder.record(dict(self.EVENT))
            await server.called(1)
            recorder.record(dict(self.EVENT) | {"count": 5})
            server.gate.set()
        assert server.verbs == ["create", "patch"]
        assert server.only()["count"] == 5

    async def test_is_neither_aggregated_nor_filtered(self) -> None:
        """Its own recorder did that: fifty Events of one object are fifty Events."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            for index in range(50):
                recorder.record({**self.EVENT, "metadata": {"name": f"web.{index}", "namespace": "ns"}})
        assert len(server.events) == 50
