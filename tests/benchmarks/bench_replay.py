"""Caches and queues with up to 100,000 mirrored pods over 20 clusters, from watch streams of ``canned_server``.

Each size runs in a process of its own: informers of the product with their transforms and indexes, and one work
queue per cluster whose reconciliation looks up both pods and computes the patch of the status.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import structlog

from clusterset.config import Cluster, NodeConfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller
from tests.benchmarks.canned_pods import CLUSTER_ID
from tests.benchmarks.canned_server import canned
from tests.benchmarks.stage import progress
from tests.benchmarks.tables import condition
from tests.benchmarks.usage import usage
from virtual_node.config.types import Config
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.translate.pods.status import status_patch, upper_status

CLUSTERS, SIZES, EVENTS = 20, (0, 1000, 10_000, 100_000), 100_000
"""Without pods first: the memory of the clients and queues is not that of pods."""
_LINEAR = 0.2
"""Most that memory and CPU time per pod may grow with the number of pods, as a share."""


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return a row for each number of pods, and targets."""
    sizes, events = ((0, 200, 2000), 2000) if quick else (SIZES, EVENTS)
    rows: list[dict[str, Any]] = []
    for pods in sizes:
        async with canned(clusters=CLUSTERS, pods=pods) as server:
            argv = [f"--server={server}", f"--pods={pods}", f"--events={events if pods else 0}"]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, *argv, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await process.communicate()
        row = json.loads(out)
        if rows:
            row["kibPerPod"] = (row["rssMiB"] - rows[0]["rssMiB"]) * 1024 / pods
        progress(str(row))
        rows.append(row)
    return {"clusters": CLUSTERS, "rows": rows, "targets": _targets(rows)}


def _targets(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how memory and CPU time grow to the largest size, each per pod or event.

    Memory is compared with the smallest size, and CPU time with the second largest, because it is too short to be
    measured with fewer pods.
    """
    none, least, half, most = rows[0], rows[1], rows[-2], rows[-1]
    found = []
    for what, before, after in (
        ("memory per pod", least["kibPerPod"], most["kibPerPod"]),
        (
            "CPU per pod at start",
            *(1000 * (one["startCpu"] - none["startCpu"]) / one["pods"] for one in (half, most)),
        ),
        ("CPU per event", *(1000 * one["eventCpu"] / one["events"] for one in (half, most))),
    ):
        unit = "KiB" if what == "memory per pod" else "ms"
        growth = after / before - 1
        measured = f"{growth:+.0%} ({before:.3g} to {after:.3g} {unit})"
        found.append(condition(what, f"grows ≤ {_LINEAR:.0%}", measured, is_met=growth <= _LINEAR))
    return found


async def _replay(server: str, pods: int, events: int) -> dict[str, Any]:
    """Start caches and queues, handle the events, and return the measurements."""
    updates = 0

    def count(_old: object, _new: object) -> None:
        nonlocal updates
        updates += 1

    begun, cpu = time.perf_counter(), time.process_time()
    upper = Client(ConnectionConfig(f"{server}/upper"), qps=0, cluster="upper")
    clients = [
        Client(ConnectionConfig(f"{server}/lower-{number}"), qps=0, cluster=f"lower-{number}")
        for number in range(CLUSTERS)
    ]
    async with upper, asyncio.TaskGroup() as group:
        contexts = [_context(upper, client, f"vn-{number}") for number, client in enumerate(clients)]
        every = [ClusterCaches(context) for context in contexts]
        caches = [one.pods for one in every]
        controllers = [_controller(context, one) for context, one in zip(contexts, caches, strict=True)]
        informers = [
            informer
            for one in every
            for informer in (one.lower_namespaces, *one.pods.upper.values(), one.pods.lower)
        ]
        for one in caches:
            one.lower.add_handler(on_update=count)
        tasks = [group.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.wait_synced()
        tasks += [group.create_task(controller.run()) for controller in controllers]
        await _drained(controllers)
        row: dict[str, Any] = {
            "pods": pods,
            "startSeconds": time.perf_counter() - begun,
            "startCpu": time.process_time() - cpu,
        }
        gc.collect()
        row["rssMiB"] = usage(os.getpid()).rss_mib
        row["events"] = wanted = events // CLUSTERS * CLUSTERS
        begun, cpu = time.perf_counter(), time.process_time()
        async with aiohttp.ClientSession() as session, session.get(f"{server}/go?events={events}"):
            pass
        await _until(lambda: updates >= wanted)
        await _drained(controllers)
        row["eventSeconds"] = time.perf_counter() - begun
        row["eventCpu"] = time.process_time() - cpu
        row["peakMiB"] = usage(os.getpid()).peak_mib
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(client.close() for client in clients))
    return row


def _context(upper: Client, lower: Client, node: str) -> ClusterContext:
    recorder: Any = None  # nothing is recorded
    return ClusterContext(
        name=lower.cluster,
        cluster_id=CLUSTER_ID,
        upper=upper,
        lower=lower,
        settings=Config(),
        config=Cluster(name=lower.cluster, kubeconfig="k", node_name=node),
        nodes={node: NodeConfig(name=node)},
        recorder=recorder,
        log=structlog.get_logger(),
    )


def _controller(context: ClusterContext, caches: PodCaches) -> Controller[str]:
    """Return a queue of upper UIDs that both caches fill."""

    async def reconcile(uid: str) -> None:
        upper, lower = caches.upper_pod(uid), caches.lower_pod(uid)
        assert upper is not None
        assert lower is not None
        desired = upper_status(lower.to_dict(), upper.to_dict())
        status_patch(upper.status or {}, desired, uid=uid)

    controller: Controller[str] = Controller(
        context.name, reconcile, workers=context.settings.pod_sync_workers, backoff=ExponentialBackoff(0.1, 1)
    )
    add = controller.queue.add
    for informer in caches.upper.values():
        informer.on_change(lambda pod: add(pod.uid), lambda pod: add(pod.uid))

    def lower_changed(pod: Any) -> None:
        add(pod.labels["virtual-node.io/upper-uid"], priority=1)

    caches.lower.on_change(lower_changed, lower_changed)
    return controller


async def _drained(controllers: Sequence[Controller[str]]) -> None:
    """Wait until no queue has a key."""
    await _until(lambda: not any(len(controller.queue) for controller in controllers))


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what it waits for has no events
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--pods", type=int, required=True)
    parser.add_argument("--events", type=int, required=True)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(_replay(given.server, given.pods, given.events))))
