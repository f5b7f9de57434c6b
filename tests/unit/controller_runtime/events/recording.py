"""A running recorder, and the Events of an apiserver in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import REGISTRY

from controller_runtime.client.client import PatchType
from controller_runtime.events import EventRecorder
from tests.background import working
from tests.fakes.apiserver import server as apiserver
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.storage import Body

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "namespace": "ns",
    "name": "web",
    "uid": "u1",
    "resourceVersion": "7",
}


class Server(MemoryClient):
    """An API server with Events only, and scripted errors."""

    def __init__(self, cluster: str = "test") -> None:
        super().__init__(apiserver.Server(cluster, namespaces=("ns", "default")))
        self.events = self.server.objects["events"]
        self.trouble: list[Exception | None] = []
        """Errors of the next requests; None: the request succeeds."""
        self.gate = asyncio.Event()
        self.gate.set()
        self._changed = asyncio.Event()

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.calls]

    async def patch(self, *arguments: Any, **options: Any) -> Body:
        assert options.get("patch_type", PatchType.MERGE) is PatchType.MERGE
        return await super().patch(*arguments, **options)

    async def send(self, verb: str, plural: str, key: str, action: Callable[[], Any], **_: Any) -> Any:
        assert plural == "events"
        self.calls.append((verb, plural, key))
        self._changed.set()
        await self.gate.wait()
        error = self.trouble.pop(0) if self.trouble else None
        if error is not None:
            raise error
        return action()

    async def called(self, times: int) -> None:
        """Wait until that many requests have arrived, and all but the last are answered."""
        while len(self.calls) < times:
            self._changed.clear()
            await self._changed.wait()

    def only(self) -> Body:
        """Return the only Event, without the metadata that the server sets."""
        (event,) = self.events.values()
        added = {"uid", "resourceVersion", "creationTimestamp", "generation"}
        return {
            **event,
            "metadata": {key: value for key, value in event["metadata"].items() if key not in added},
        }


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
