"""``virtual-node status --watch``: changes, each once, without periodic ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from tests.unit.controller_runtime.loopback import reply, serve
from tests.unit.virtual_node.commands.doctor_facts import conditions, node, pod
from tests.unit.virtual_node.commands.run_command import LEASES, NODES, PODS, Person
from tests.unit.virtual_node.examine.health_objects import lease
from virtual_node.commands.status import watch as status_watch
from virtual_node.commands.status.watch import StatusWatch


class Cluster:
    """Lists objects, and sends events."""

    def __init__(self) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {NODES: [node()], LEASES: [lease()], PODS: []}
        self.happenings: dict[str, asyncio.Queue[Any]] = {path: asyncio.Queue() for path in self.objects}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return reply(
                {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": self.objects[request.path]}
            )
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            event = await self.happenings[request.path].get()
            await response.write(json.dumps(event).encode() + b"\n")

    def happens(self, path: str, kind: str, thing: dict[str, Any]) -> None:
        thing["metadata"]["resourceVersion"] = "2"
        self.happenings[path].put_nowait({"type": kind, "object": thing})


async def test_changes_are_shown_once_and_heartbeats_are_not(monkeypatch: pytest.MonkeyPatch):
    """A new pod, a change of readiness, and a deleted node."""
    monkeypatch.setattr(status_watch, "_COALESCE", 0.01)
    told: asyncio.Queue[Sequence[dict[str, Any]]] = asyncio.Queue()

    async def no_lag(_node: str) -> None:
        return None

    def watch(before: Sequence[dict[str, Any]]) -> asyncio.Task[None]:
        return asyncio.create_task(
            StatusWatch(
                client, selector="type=virtual-kubelet,size>1", names=(), before=before, pods_seen=True, leases_seen=True,
                lag_of=no_lag, show=told.put_nowait,
            ).run()
        )  # fmt: skip

    cluster = Cluster()
    async with (
        serve(cluster.answer) as server,
        Client(ConnectionConfig(server.url)) as client,
        asyncio.timeout(20),
    ):
        first = watch([])
        seen = await told.get()
        assert [(one["name"], one["ready"]) for one in seen] == [("vn", "True")]
        first.cancel()
        task = watch(seen)
        await asyncio.sleep(0.3)
        renewed = lease(1)
        renewed["metadata"]["namespace"] = "kube-node-lease"
        cluster.happens(LEASES, "MODIFIED", renewed)
        await asyncio.sleep(0.2)
        assert told.empty()
        cluster.happens(PODS, "ADDED", pod("web", nodeName="vn", status={"phase": "Running"}))
        assert [one["pods"]["running"] for one in await told.get()] == [1]
        cluster.happens(NODES, "MODIFIED", {**node(), "status": conditions("Ready", "False")})
        assert [one["ready"] for one in await told.get()] == ["False"]
        cluster.happens(NODES, "DELETED", node())
        assert [(one["name"], one["ready"]) for one in await told.get()] == [("vn", "Gone")]
        task.cancel()


async def test_only_processes_of_changed_nodes_are_asked_and_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
):
    """Processes that have ended would delay each change by seconds per node."""
    monkeypatch.setattr(status_watch, "_COALESCE", 0.01)
    told: asyncio.Queue[Sequence[dict[str, Any]]] = asyncio.Queue()
    asked: list[str] = []
    gate = asyncio.Event()

    async def silent(node: str) -> None:
        asked.append(node)
        if len(asked) == 3:
            gate.set()
        await gate.wait()

    cluster = Cluster()
    cluster.objects[NODES] = [node("vn-a"), node("vn-b"), node("vn-c")]
    async with (
        serve(cluster.answer) as server,
        Client(ConnectionConfig(server.url)) as client,
        asyncio.timeout(5),
        asyncio.TaskGroup() as group,
    ):
        watch = StatusWatch(
            client, selector="type=virtual-kubelet", names=(), before=[], pods_seen=False, leases_seen=False,
            lag_of=silent, show=told.put_nowait,
        )  # fmt: skip
        task = group.create_task(watch.run())
        await told.get()
        asked.clear()
        cluster.happens(NODES, "MODIFIED", {**node("vn-b"), "status": conditions("Ready", "False")})
        await told.get()
        assert asked == ["vn-b"]
        task.cancel()


async def test_data_cannot_be_watched(person: Person):
    """Use kubectl for a stream of documents."""
    code, _, err = await person.types("status", "-w", "-o", "json", objects={NODES: [node()]})
    assert (code, err.startswith("virtual-node: --watch: shows tables")) == (2, True)
