"""A running recorder, and the Events of an apiserver in memory."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from prometheus_client import REGISTRY

from controller_runtime import resources
from controller_runtime.client.client import PatchType
from controller_runtime.errors import AlreadyExists, NotFound
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.resources import Resource
from tests.unit.background import working

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
    """The Events of an apiserver, with scripted errors."""

    def __init__(self, cluster: str = "test") -> None:
        self.cluster = cluster
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.trouble: list[Exception | None] = []
        """Errors of the next requests; None: the request succeeds."""
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
        patch_type: PatchType = PatchType.MERGE,
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
        """Wait until that many requests have arrived, and all but the last are answered."""
        while len(self.calls) < times:
            self._changed.clear()
            await self._changed.wait()

    def only(self) -> dict[str, Any]:
        """Return the only Event."""
        (event,) = self.events.values()
        return event


@contextlib.asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[None]:
    """Run a recorder; leaving cancels it and waits until it has flushed."""
    async with working(recorder.run()):
        await asyncio.sleep(0)  # its first step
        yield


def dropped(cluster: str, cause: str) -> float:
    """The counter of dropped Events."""
    labels = {"cluster": cluster, "cause": cause}
    return REGISTRY.get_sample_value("virtual_node_events_dropped_total", labels) or 0.0


def recorder_for(server: Server, **options: Any) -> EventRecorder:
    """Return a recorder with a fixed wall clock."""
    options.setdefault("now", lambda: NOW)
    return EventRecorder(server, component="virtual-node", host="node-1", **options)
