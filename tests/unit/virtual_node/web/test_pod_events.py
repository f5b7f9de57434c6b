"""Events of other programs on the page: read in the background, for the pod and its predecessors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.errors import Forbidden
from controller_runtime.objects import from_dict
from virtual_node.web import pod_detail as module
from virtual_node.web.pod_detail import PodEvents, decisions

pytestmark = pytest.mark.looptime


def _pod(name: str, owner: str = "web-5f6d8") -> Any:
    metadata = {
        "namespace": "shop", "name": name, "uid": f"uid-{name}",
        "ownerReferences": [{"kind": "ReplicaSet", "name": owner, "controller": True}],
    }  # fmt: skip
    return from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}})


def _event(name: str, reason: str, message: str, *, at: int = 0, uid: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": "e", "namespace": "shop"},
        "involvedObject": {"kind": "Pod", "name": name, "uid": uid or f"uid-{name}"},
        "type": "Normal", "reason": reason, "message": message,
        "lastTimestamp": f"2030-01-01T00:00:{at:02}Z", "source": {"component": "virtual-node-multi-scheduler"},
    }  # fmt: skip


class _Server:
    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = events
        self.asked: list[str] = []
        self.error: Exception | None = None

    async def list(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        assert namespace == "shop"
        self.asked.append(selector)
        await asyncio.sleep(1)
        if self.error is not None:
            raise self.error
        wanted = dict(part.split("=") for part in selector.split(","))
        return [
            one for one in self.events
            if wanted.get("involvedObject.name", one["involvedObject"]["name"]) == one["involvedObject"]["name"]
            and wanted.get("reason", one["reason"]) == one["reason"]
        ]  # fmt: skip


async def test_events_of_the_pod_and_moves_of_earlier_pods_of_its_owner_are_read_in_the_background() -> None:
    """The page never waits, and a pod of another owner with a similar name is left out."""
    server = _Server(
        _event("web-5f6d8-new", "NodeScored", "Bound to vn-a", at=9),
        _event("web-5f6d8-old", "Rescheduled", "Moved off vn-b", at=5),
        _event("web-5f6d8-old", "Killing", "Stopping container"),
        _event("web-5f6d8-other-old", "Rescheduled", "Moved off vn-c"),
    )
    events = PodEvents(server.list)
    assert events.of(_pod("web-5f6d8-new")) == []
    await asyncio.sleep(3)
    assert [(one["reason"], one["object"], one["isCurrent"]) for one in events.of(_pod("web-5f6d8-new"))] == [
        ("NodeScored", "Pod shop/web-5f6d8-new", True),
        ("Rescheduled", "Pod shop/web-5f6d8-old", False),
    ]
    assert len(server.asked) == 2


async def test_a_failing_api_server_keeps_known_events() -> None:
    """It is read again after a while, once at a time."""
    server = _Server(_event("web-5f6d8-new", "NodeScored", "Bound to vn-a"))
    events, pod = PodEvents(server.list), _pod("web-5f6d8-new")
    events.of(pod)
    await asyncio.sleep(10)
    server.error = Forbidden("no")
    for _ in range(5):
        assert len(events.of(pod)) == 1
    await asyncio.sleep(2)
    assert len(events.of(pod)) == 1
    assert len(server.asked) == 3


async def test_events_of_a_bounded_number_of_pods_are_kept() -> None:
    """A user may open many pods."""
    events = PodEvents(_Server().list)
    for number in range(module._PODS + 5):
        events.of(_pod(f"web-5f6d8-{number}"))
    assert len(events._known) == module._PODS
    await asyncio.sleep(3)


def test_the_record_of_a_choice_is_a_line_per_agent_then_the_moves() -> None:
    """A record about an earlier pod of the same name does not count."""
    row = {"object": "Pod shop/web-1", "isCurrent": True}
    scored = "Bound to vn-a. Agent fit: vn-a 87 (weight 1); rejected: vn-c (0/3: no). Agent cost: vn-a 9 (weight 2)"
    assert decisions([
        {**row, "reason": "NodeScored", "message": "Bound to vn-z", "isCurrent": False},
        {**row, "reason": "NodeScored", "message": scored},
        {**row, "reason": "Rescheduled", "message": "Moved off vn-b", "object": "Pod shop/web-0", "isCurrent": False},
        {**row, "reason": "NotRescheduled", "message": "Stays: a budget"},
    ]) == [
        {"name": "multi-scheduler", "value": "Bound to vn-a"},
        {"name": "agent fit", "value": "vn-a 87 (weight 1); rejected: vn-c (0/3: no)"},
        {"name": "agent cost", "value": "vn-a 9 (weight 2)"},
        {"name": "Rescheduled by the descheduler (of shop/web-0)", "value": "Moved off vn-b"},
        {"name": "NotRescheduled by the descheduler", "value": "Stays: a budget"},
    ]  # fmt: skip
    assert decisions([]) == []
