"""An Event has the fields of client-go's recorder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime import objects
from tests.unit.controller_runtime.events.recording import POD, Server, recorder_for, running

pytestmark = pytest.mark.looptime


class TestShape:
    """Fields of an Event."""

    async def test_event_has_every_field_kubectl_describe_reads(self) -> None:
        """Object, reason, times, count and source, as from client-go's recorder."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Warning", "FailedMount", "no volume")
        assert server.only() == {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "web.1886caf21ca08a70", "namespace": "ns"},
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
        """A cached object, a plain dict and an ObjectReference give the same Event."""
        plain = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"namespace": "ns", "name": "web", "uid": "u1", "resourceVersion": "7"},
            "spec": {"nodeName": "n"},
        }
        forms: dict[str, Mapping[str, Any] | objects.Object] = {
            "cached": objects.from_dict(plain),
            "plain": plain,
            "reference": POD | {"fieldPath": "spec.containers{app}"},
        }
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(forms[form], "Normal", "Started", "x")
        expected = forms["reference"] if form == "reference" else POD
        assert server.only()["involvedObject"] == expected

    async def test_cluster_scoped_objects_events_are_in_default(self) -> None:
        """An Event about a Node goes to namespace default and its reference names none."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event({"kind": "Node", "apiVersion": "v1", "name": "n"}, "Normal", "NodeReady", "x")
        assert server.only()["metadata"]["namespace"] == "default"
        assert "namespace" not in server.only()["involvedObject"]

    async def test_names_are_unique_in_the_same_microsecond_and_always_valid(self) -> None:
        """Also for objects with names that are invalid for Events."""
        server = Server()
        recorder = recorder_for(server)
        names = ["web", "web", "system:node", "x" * 253]
        async with running(recorder):
            for index, name in enumerate(names):
                recorder.event(POD | {"name": name, "kind": f"Kind{index}"}, "Normal", "A", "x")
        assert len(server.events) == len(names)
        assert all(
            len(name) <= 253 and ":" not in name
            for _, _, name in (key.partition("/") for key in server.events)
        )

    async def test_a_name_of_the_greatest_length_keeps_its_object(self) -> None:
        """A name has at most 253 characters, of which a dot and the time are 17."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            for length in (236, 237):
                recorder.event(POD | {"name": "x" * length}, "Normal", "A", "x")
        names = sorted((key.partition("/")[2] for key in server.events), key=len)
        assert [len(name) for name in names] == [53, 253]
        assert names[1].startswith("x" * 236 + ".")

    async def test_long_messages_are_cut(self) -> None:
        """A message longer than 1,024 characters ends in an ellipsis."""
        server = Server()
        recorder = recorder_for(server)
        async with running(recorder):
            recorder.event(POD, "Normal", "A", "x" * 5000)
        assert len(server.only()["message"]) == 1024
        assert server.only()["message"].endswith("x ...")

    async def test_event_without_an_object_is_only_logged(self) -> None:
        """An object without a kind or name raises no error."""
        server = Server()
        recorder = recorder_for(server)
        with capture_logs() as logs:
            recorder.event({}, "Normal", "A", "x")
            recorder.record({})
        assert [line["log_level"] for line in logs] == ["error", "error"]
