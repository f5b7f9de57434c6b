"""A load of pods bound directly to a node, and its measurements; all benchmarks of mirroring use it.

``run_load`` creates N pods with 32 clients, watches them to Running, deletes them, watches them go. It does
not depend on virtual nodes: the same load runs directly on a kwok node and through a virtual node, in one run
of the benchmark, so that the ratio is independent of the machine's current speed.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists
from controller_runtime.objects import Object
from tests.background import working
from tests.benchmarks.usage import percentile
from tests.workloads import manifest

T = TypeVar("T")
CLIENTS = 32
_STARTED = frozenset({"Running", "Succeeded"})


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Measurements of one load. Times in seconds."""

    pods: int
    running_in: float
    rate: float
    """Pods per second to Running."""
    delete_rate: float
    p50: float
    """Median of the time from the request to create a pod until it is seen Running; ``p99`` is the 99th percentile."""
    p99: float


def pod(name: str, *, namespace: str = "", node: str = "") -> dict[str, Any]:
    """Return the load's pod: one container, bound directly to a node, otherwise as the API server defaults it.

    The scheduler chooses the node if ``node`` is empty.
    """
    requests = {"requests": {"cpu": "10m", "memory": "16Mi"}}
    spec = {
        **({"nodeName": node} if node else {}),
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": requests}],
    }
    metadata = {"labels": {"app": "load"}, **({"namespace": namespace} if namespace else {})}
    return manifest("Pod", name, metadata=metadata, spec=spec)


async def run_load(
    client: Client,
    *,
    node: str,
    count: int,
    namespace: str = "load",
    rate: float | None = None,
    together: asyncio.Barrier | None = None,
) -> LoadResult:
    """Create ``count`` pods on a node, wait until all run, delete them, wait until all are gone.

    Args:
        client: the cluster to load.
        node: where the pods are bound; empty: the scheduler chooses.
        count: how many.
        namespace: created when missing.
        rate: pods per second to create; None: as fast as 32 clients can.
        together: with other loads, which start and delete at the same time.

    Raises:
        TimeoutError: not all pods ran, or were deleted, within ten minutes.
        RuntimeError: a pod failed.
    """
    await make_namespace(client, namespace)
    sent: dict[str, float] = {}
    bound = f"spec.nodeName={node}" if node else ""
    async with PodWatch(client, namespace=namespace, field_selector=bound) as watch:
        # The names differ from those of earlier loads, because kwok deletes some pods again by name, up to 20 s later.
        prefix = f"load-{secrets.token_hex(3)}"
        if together is not None:
            await together.wait()
        started = time.perf_counter()

        async def create(name: str) -> None:
            if rate is not None:
                due = started + len(sent) / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent[name] = time.perf_counter()
            body = pod(name, namespace=namespace, node=node)
            await client.create(resources.PODS, body, namespace=namespace)

        names = [f"{prefix}-{number:05d}" for number in range(count)]
        await for_all(names, create, clients=1 if rate else CLIENTS)
        await watch.until(watch.ran, count)
        latencies = [watch.ran[name] - sent[name] for name in sent]
        if together is not None:
            await together.wait()
        delete_started = time.perf_counter()
        await for_all(names, lambda name: client.delete(resources.PODS, name, namespace=namespace))
        await watch.until(watch.gone, count)
        running_in, deleted_in = max(watch.ran.values()) - started, max(watch.gone.values()) - delete_started
        return LoadResult(
            pods=count,
            running_in=running_in,
            rate=count / running_in,
            delete_rate=count / deleted_in,
            p50=statistics.median(latencies),
            p99=percentile(latencies, 0.99),
        )


async def run_loads(
    places: Sequence[tuple[Client, str]], *, count: int, rate: float | None = None
) -> LoadResult:
    """Run the same load at several places at once, and return the figures of the slowest.

    Args:
        places: clusters, each with the node where its pods are bound, as for ``run_load``.
        count: pods of each.
        rate: pods per second and place.
    """
    together = asyncio.Barrier(len(places))
    results = await asyncio.gather(
        *(run_load(client, node=node, count=count, rate=rate, together=together) for client, node in places)
    )
    return LoadResult(
        pods=count,
        running_in=max(result.running_in for result in results),
        rate=min(result.rate for result in results),
        delete_rate=min(result.delete_rate for result in results),
        p50=max(result.p50 for result in results),
        p99=max(result.p99 for result in results),
    )


async def for_all(
    items: Iterable[T], act: Callable[[T], Awaitable[object]], *, clients: int = CLIENTS
) -> None:
    """Call a function for each item, with so many clients at the same time."""
    left = iter(items)

    async def client() -> None:
        for item in left:
            await act(item)

    await asyncio.gather(*(client() for _ in range(clients)))


class PodWatch:
    """Times at which pods were first seen, had started and were gone, by pod name; of ``time.perf_counter``."""

    def __init__(self, client: Client, **selection: Any) -> None:
        """Create a watch; entering the context starts it.

        Args:
            client: the cluster.
            selection: namespace and selectors, as for ``Informer``.
        """
        self.seen: dict[str, float] = {}
        self.ran: dict[str, float] = {}
        """Pods that are Running or have succeeded."""
        self.failed: list[str] = []
        """Names and messages of failed pods."""
        self.gone: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._informer = Informer(client, resources.PODS, **selection)
        self._informer.add_handler(
            on_add=lambda pod, _initial: self._note(pod),
            on_update=lambda _old, new: self._note(new),
            on_delete=self._note_gone,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to watch; return after the first list."""
        self._task = asyncio.create_task(self._informer.run())
        await self._informer.wait_synced(60)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, times: dict[str, float], count: int, *, limit: float = 600) -> None:
        """Wait until one of the three dicts has so many pods.

        Raises:
            TimeoutError: not within the limit.
            RuntimeError: a pod failed.
        """
        async with asyncio.timeout(limit):
            while len(times) < count:
                if self.failed:
                    raise RuntimeError(f"{len(self.failed)} pods failed, such as {self.failed[0]}")
                self._changed.clear()
                await self._changed.wait()

    def _note(self, pod: Object) -> None:
        now = time.perf_counter()
        self.seen.setdefault(pod.name, now)
        status = pod.status or {}
        if status.get("phase") in _STARTED:
            self.ran.setdefault(pod.name, now)
        elif status.get("phase") == "Failed" and pod.metadata.deletion_timestamp is None:
            self.failed.append(f"{pod.name}: {status.get('message')}")
        self._changed.set()

    def _note_gone(self, pod: Object) -> None:
        self.gone.setdefault(pod.name, time.perf_counter())
        self._changed.set()


async def make_namespace(client: Client, name: str) -> None:
    """Create a namespace in which pods may be created, if it does not exist."""
    try:
        await client.create(
            resources.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        )
    except AlreadyExists:
        return
    # The ServiceAccount admission refuses pods until the namespace's default account exists.
    accounts = Informer(client, resources.SERVICE_ACCOUNTS, namespace=name)
    there = asyncio.Event()
    accounts.add_handler(on_add=lambda _account, _initial: there.set())
    async with working(accounts.run()), asyncio.timeout(30):
        await there.wait()
