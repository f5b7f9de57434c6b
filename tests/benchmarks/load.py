"""A load of pods bound directly to a node, and its measurements; all benchmarks of mirroring use it.

``run_load`` creates N pods with 32 clients, watches them to Running, deletes them, watches them go. It does
not depend on virtual nodes: the same load runs directly on a kwok node and through a virtual node, in one run
of the benchmark, so that the ratio is independent of the machine's current speed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists
from controller_runtime.objects import Object

CLIENTS = 32
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class LoadResult:
    """Measurements of one load. Times in seconds."""

    pods: int
    running_in: float
    latencies: list[float] = field(repr=False)
    """Create request sent → Running seen, per pod."""
    deleted_in: float = 0.0

    @property
    def rate(self) -> float:
        """Return pods per second to Running."""
        return self.pods / self.running_in

    @property
    def delete_rate(self) -> float:
        """Return deletions per second."""
        return self.pods / self.deleted_in

    @property
    def p50(self) -> float:
        """Return the median of create → Running."""
        return statistics.median(self.latencies)

    @property
    def p99(self) -> float:
        """Return the 99th percentile of create → Running."""
        return sorted(self.latencies)[max(0, int(len(self.latencies) * 0.99) - 1)]


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU seconds and memory of a process."""

    cpu: float
    peak_mib: float
    rss_mib: float


def usage(pid: int) -> ProcessUsage:
    """Read a process's CPU time and memory from /proc."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return ProcessUsage(
        cpu=(int(stat[11]) + int(stat[12])) / _TICKS,
        peak_mib=int(status["VmHWM"].split()[0]) / 1024,
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
    )


def pod(name: str, *, namespace: str, node: str) -> dict[str, Any]:
    """Return the load's pod: one container, bound directly to a node, otherwise as the API server defaults it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "load"}},
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.k8s.io/pause:3.10",
                    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                }
            ],
        },
    }


async def run_load(
    client: Client,
    *,
    node: str,
    count: int,
    namespace: str = "load",
    rate: float | None = None,
    limit: float = 600,
) -> LoadResult:
    """Create ``count`` pods on a node, wait until all run, delete them, wait until all are gone.

    Args:
        client: the cluster to load.
        node: where the pods are bound.
        count: how many.
        namespace: created when missing.
        rate: pods per second to create; None: as fast as 32 clients can.
        limit: seconds after which the load counts as failed.

    Raises:
        TimeoutError: not all pods ran, or were deleted, within the limit.
        RuntimeError: a pod failed.
    """
    await _namespace(client, namespace)
    sent: dict[str, float] = {}
    ran: dict[str, float] = {}
    all_ran, all_gone = asyncio.Event(), asyncio.Event()
    gone: set[str] = set()
    failed: list[str] = []

    def changed(pod: Object) -> None:
        phase = (pod.status or {}).get("phase")
        if phase == "Failed":
            failed.append(f"{pod.name}: {(pod.status or {}).get('message')}")
            all_ran.set()
        if pod.name in ran or phase != "Running":
            return
        ran[pod.name] = time.perf_counter()
        if len(ran) >= count:
            all_ran.set()

    def deleted(pod: Object) -> None:
        gone.add(pod.name)
        if len(gone) >= count:
            all_gone.set()

    informer = Informer(client, resources.PODS, namespace=namespace, field_selector=f"spec.nodeName={node}")
    informer.add_handler(
        on_add=lambda pod, _initial: changed(pod), on_update=lambda _old, new: changed(new), on_delete=deleted
    )
    watching = asyncio.create_task(informer.run())
    try:
        await informer.wait_synced(30)
        # The names differ from those of earlier loads, because kwok deletes some pods again by name, up to 20 s later.
        prefix = f"load-{secrets.token_hex(3)}"
        names = iter([f"{prefix}-{number:05d}" for number in range(count)])
        started = time.perf_counter()

        async def create() -> None:
            for position, name in enumerate(names):
                if rate is not None:
                    due = started + (len(sent)) / rate
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                del position
                sent[name] = time.perf_counter()
                await client.create(
                    resources.PODS, pod(name, namespace=namespace, node=node), namespace=namespace
                )

        await asyncio.gather(*(create() for _ in range(1 if rate else CLIENTS)))
        async with asyncio.timeout(limit):
            await all_ran.wait()
        if failed:
            raise RuntimeError(f"{len(failed)} pods failed, such as {failed[0]}")
        finished = time.perf_counter()
        latencies = [ran[name] - sent[name] for name in sent]
        delete_started = time.perf_counter()
        await _delete(client, iter(list(sent)), namespace)
        async with asyncio.timeout(limit):
            await all_gone.wait()
        return LoadResult(
            pods=count,
            running_in=finished - started,
            latencies=latencies,
            deleted_in=time.perf_counter() - delete_started,
        )
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _delete(client: Client, names: Iterator[str], namespace: str) -> None:
    """Send the deletions with as many clients as the creations."""

    async def delete() -> None:
        for name in names:
            await client.delete(resources.PODS, name, namespace=namespace)

    await asyncio.gather(*(delete() for _ in range(CLIENTS)))


async def _namespace(client: Client, name: str) -> None:
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
    task = asyncio.create_task(accounts.run())
    try:
        async with asyncio.timeout(30):
            await there.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
