"""The whole controller over an API server in memory, with pods that are ready and run nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from clusterset.model.names import SWARMS
from swarm import app
from swarm.controller.caches import Caches
from swarm.program import SwarmSettings
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from tests.waiting import becomes

NAMESPACE = "ns"
Body = dict[str, Any]


class Scene:
    """One namespace."""

    def __init__(self) -> None:
        self.server = Server(namespaces=(NAMESPACE, "kube-node-lease"))
        self.client: Any = MemoryClient(self.server)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Caches]:
        """Run the caches, as a standby replica does."""
        caches = Caches(self.client, None)
        async with _ended([asyncio.create_task(informer.run()) for informer in caches.all()]):
            yield caches

    @contextlib.asynccontextmanager
    async def running(self, caches: Caches | None = None) -> AsyncIterator[None]:
        """Run the controller, with the caches of a standby replica or its own."""
        if caches is None:
            async with self.following() as own, self.running(own):
                yield
            return

        async def synced() -> None:
            for informer in caches.all():
                await informer.wait_synced()

        async with _ended([asyncio.create_task(app.work(SwarmSettings(), self.client, caches, synced))]):
            yield

    def swarm(self, name: str = "s", **spec: Any) -> Body:
        """Create a Swarm; its workers are all pods by default."""
        whole = {"workers": {"selector": {}}, **spec}
        body = {
            "apiVersion": SWARMS.api_version,
            "kind": SWARMS.kind,
            "metadata": {"name": name},
            "spec": whole,
        }
        return self.server.create("swarms", body, namespace=NAMESPACE)

    def pod(self, name: str = "w-0", **status: Any) -> Body:
        """Create a pod that is ready."""
        ready = {"conditions": [{"type": "Ready", "status": "True"}], **status}
        body = {"metadata": {"name": name}, "spec": {"nodeName": "n", "containers": [{"name": "a"}]}}
        self.server.create("pods", body, namespace=NAMESPACE)
        return self.server.change("pods", f"{NAMESPACE}/{name}", status=ready)

    def config_map(self, name: str, data: dict[str, str], **metadata: Any) -> Body:
        """Create a ConfigMap."""
        body = {"metadata": {"name": name, **metadata}, "data": data}
        return self.server.create("configmaps", body, namespace=NAMESPACE)

    def acknowledge(self, lease: str, uid: str, **fields: Any) -> None:
        """Write a worker's report into a Lease."""
        report = {"podUID": uid, "session": "t", "life": 1, "version": 0, "running": [], **fields}
        marks = {"swarm.virtual-node.io/acknowledged": json.dumps(report)}
        self.server.change("leases", f"{NAMESPACE}/{lease}", metadata={"annotations": marks})

    def find(self, plural: str, name: str) -> Body | None:
        """Return an object, or None."""
        return self.server.find(plural, f"{NAMESPACE}/{name}")

    def status(self, name: str = "s") -> Body:
        """Return the status of a Swarm."""
        return (self.find("swarms", name) or {}).get("status") or {}

    def condition(self, name: str = "s", kind: str = "Degraded") -> tuple[str, str]:
        """Return reason and message of a condition."""
        found = {one["type"]: one for one in self.status(name).get("conditions") or ()}
        return found.get(kind, {}).get("reason", ""), found.get(kind, {}).get("message", "")

    def events(self, reason: str) -> list[str]:
        """Return the messages of Events."""
        return [one["message"] for one in self.server.all("events") if one["reason"] == reason]


@contextlib.asynccontextmanager
async def _ended(tasks: list[asyncio.Task[None]]) -> AsyncIterator[None]:
    """Cancel tasks after the block."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def so(check: Callable[[], Any], wanted: Any, *, within: float = 30) -> None:
    """Wait until a check returns the expected value."""

    async def read() -> Any:
        return check()

    await becomes(read, wanted, within=within)
