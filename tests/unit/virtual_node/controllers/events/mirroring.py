"""A mirror of events between two clusters: what its caches have, what the lower cluster sends, and what is recorded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog
from prometheus_client import REGISTRY

from clusterset.config import Cluster, NodeConfig
from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.client.client import Batch
from controller_runtime.client.collection import ObjectList
from controller_runtime.client.limits import CacheBudget
from controller_runtime.client.transport import Outage
from controller_runtime.objects import Object, WatchEvent, from_dict
from tests import objects
from tests.background import working
from virtual_node.config import types as configuration
from virtual_node.controllers import events
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.events import EventMirror, MirroredKind


def event(
    uid: str,
    *,
    pod: str = "ours",
    pod_uid: str = "below",
    namespace: str = "n",
    kind: str = "Warning",
    **fields: Any,
) -> Object:
    """Return a lower event about a pod; its message is its uid."""
    return from_dict(
        {
            "metadata": {"name": uid, "namespace": namespace, "uid": uid, "resourceVersion": "1"},
            "involvedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "uid": pod_uid},
            "type": kind,
            "reason": "R",
            "message": uid,
            **fields,
        }
    )


def upper_pod(name: str = "ours", *, uid: str = "above", namespace: str = "n", **annotations: str) -> Object:
    """Return an upper pod of the virtual node."""
    return _pod(name, uid, namespace, annotations=annotations)


def lower_pod(
    name: str = "ours", *, uid: str = "below", namespace: str = "n", upper_uid: str = "above", above: str = ""
) -> Object:
    """Return a lower pod that stands for an upper one, in the upper namespace ``above`` or in the same one."""
    annotations = {names.ANNOTATION_UPPER_NAMESPACE: above or namespace}
    return _pod(name, uid, namespace, labels={names.LABEL_UPPER_UID: upper_uid}, annotations=annotations)


def _pod(name: str, uid: str, namespace: str, **metadata: Any) -> Object:
    fields = {"resourceVersion": uid, **metadata}
    return from_dict(objects.pod(name, namespace=namespace, uid=uid, node="vn", metadata=fields))


def dropped(cause: str) -> float:
    """Return the number of lower events that were dropped for a cause."""
    labels = {"cluster": "a", "cause": cause}
    return REGISTRY.get_sample_value("virtual_node_events_dropped_total", labels) or 0.0


class Server:
    """Lists given events; every watch has one change and ends at once, regularly or with an error."""

    cluster = "a"

    def __init__(
        self, *there: Object, change: WatchEvent | None = None, error: Exception | None = None
    ) -> None:
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.caches = CacheBudget(0, cluster="test")
        self.there = list(there)
        self.asked = self.lists = 0
        self.selected = ""
        """The field selector of the last list."""
        self.read: list[Object] = []
        """The last list, as kept in memory."""
        self._change = change
        self._error = error

    async def list(
        self, *_what: Any, transform: Callable[[Object], Object], field_selector: str, **_more: Any
    ) -> ObjectList:
        self.selected = field_selector
        self.asked += 1
        self.lists += 1
        self.read = [transform(event) for event in self.there]
        return ObjectList(self.read, "1")

    async def watch_batches(self, *_what: Any, **_more: Any) -> AsyncIterator[Batch]:
        self.asked += 1
        await asyncio.sleep(0.001)
        yield [] if self._change is None else [self._change]
        if self._error is not None:
            raise self._error


class Feed(Server):
    """A server with one watch that stays open, on which a test sends events."""

    def __init__(self, *there: Object) -> None:
        super().__init__(*there)
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()

    async def watch_batches(self, *_what: Any, **_more: Any) -> AsyncIterator[Batch]:
        yield []
        while True:
            yield await self._batches.get()

    async def send(self, *events: Object, kind: str = "ADDED") -> None:
        """Send events, and wait until they are handled."""
        self._batches.put_nowait([WatchEvent(kind, event) for event in events])
        await asyncio.sleep(0.01 + len(events) / 1e6)


class Copies:
    """The upper cluster, which has these events."""

    cluster = "upper"

    def __init__(self, *there: Any, error: Exception | None = None) -> None:
        self.outage = Outage()
        self.caches = CacheBudget(0, cluster="test")
        self.there = there
        self._error = error

    async def list(self, *_what: Any, transform: Callable[[Object], Object], **_more: Any) -> None:
        for event in self.there:
            transform(from_dict(event))
        if self._error is not None:
            raise self._error


class _Recorder:
    """Notes what is recorded; has room while the gate is open."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def record(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    async def wait_for_room(self) -> None:
        await self.gate.wait()


class Mirroring:
    """A mirror of pods, with the upper and lower pod ``n/ours``."""

    def __init__(self, server: Server, copied: Copies | None = None, **namespaces: Any) -> None:
        self.recorder = _Recorder()
        clients: Any = (copied or Copies(), server)
        recorder: Any = self.recorder
        context = ClusterContext(
            name="a", cluster_id="c", upper=clients[0], lower=clients[1], settings=configuration.Config(),
            config=Cluster(
                name="a", kubeconfig="k", node_name="vn",
                namespaces=NamespaceConfig(**{"adopt": True, **namespaces}),
            ),
            nodes={"vn": NodeConfig(name="vn")}, recorder=recorder, log=structlog.get_logger(),
        )  # fmt: skip
        kind = self._mirrored(context)
        (self.upper,), self.lower = kind.upper, kind.lower
        self._mirror = EventMirror(context, (kind,))
        self._above, self._below = [upper_pod()], [lower_pod()]

    def _mirrored(self, context: ClusterContext) -> MirroredKind:
        return events.pods(ClusterCaches(context).pods)

    @property
    def sent(self) -> list[str]:
        """Return the messages that were recorded."""
        return [event["message"] for event in self.recorder.events]

    def add(self, upper: Object, *lower: Object) -> None:
        """Let the first lists contain further pods."""
        self._above.append(upper)
        self._below.extend(lower)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Fill the caches, and mirror until the end of the block."""
        await self.upper.replace(self._above, "1")
        await self.lower.replace(self._below, "1")
        async with working(self._mirror.run()) as task:
            await asyncio.sleep(0.01)
            yield
            assert not task.done()

    async def run(self, seconds: float) -> list[str]:
        """Return what has been mirrored after some seconds."""
        async with self.running():
            await asyncio.sleep(seconds)
        return self.sent
