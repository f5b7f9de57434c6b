"""The scenario of kueue's ``test-performance-multikueue``: 1,000 Jobs, one upper and three lower clusters.

kueue counts a workload as admitted when a worker cluster has reserved quota for it, and runs no pods. Here a Job
counts as admitted when its pod exists in a lower cluster, which is after the upper scheduler has bound it. The time
until its pod has started is measured separately. The virtual nodes have their default limits of 500 requests per
second to each cluster.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import Client
from tests.benchmarks.load import PodWatch, for_all, make_namespace, pod
from tests.benchmarks.stage import entry, progress, stage, start_nodes
from tests.benchmarks.usage import percentile
from tests.workloads import manifest

WORKERS, JOBS, ROUNDS = 3, 1000, 3
DIRECT, OURS = "kwok nodes, one cluster", "three virtual nodes"


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return a row for each round of each variant."""
    count, rounds = (30, 1) if quick else (JOBS, ROUNDS)
    rows = []
    async with stage(lower=WORKERS, kwok_nodes=5) as at:
        await start_nodes(at.sandbox, [entry(one) for one in at.sandbox.lower])
        for number in range(rounds):
            for variant, client, lower in ((DIRECT, at.lower[0], []), (OURS, at.upper, at.lower)):
                namespace = f"{'jobs' if lower else 'direct'}-{number}"
                row = {"variant": variant, **await _run(client, lower, count, namespace)}
                progress(str(row))
                rows.append(row)
    return {"jobs": count, "rounds": rows}


async def _run(client: Client, lower: list[Client], count: int, namespace: str) -> dict[str, Any]:
    """Create Jobs, wait until their pods have started, delete them, and return the measurements."""
    await make_namespace(client, namespace)
    async with contextlib.AsyncExitStack() as stack:
        watch = await stack.enter_async_context(PodWatch(client, namespace=namespace))
        workers = [await stack.enter_async_context(PodWatch(one, namespace=namespace)) for one in lower]
        sent: dict[str, float] = {}

        async def create(name: str) -> None:
            sent[name] = time.perf_counter()
            await client.create(resources.JOBS, job(name), namespace=namespace)

        begun = time.perf_counter()
        await for_all((f"job-{number:04d}" for number in range(count)), create)
        generated = time.perf_counter()
        await watch.until(watch.ran, count)
        row: dict[str, Any] = {"generation": generated - begun, **_times("running", watch.ran, sent, begun)}
        if workers:
            admitted = {name: at for worker in workers for name, at in worker.seen.items()}
            row |= _times("admitted", admitted, sent, begun)
            row["distribution"] = [len(worker.seen) for worker in workers]
        await client.delete(resources.NAMESPACES, namespace)
        await watch.until(watch.gone, count)
        return row


def _times(what: str, times: dict[str, float], sent: dict[str, float], begun: float) -> dict[str, float]:
    """Return the rate, and the percentiles since the request that created each Job."""
    taken = [at - sent[name.rpartition("-")[0]] for name, at in times.items()]
    return {
        what: len(times) / (max(times.values()) - begun),
        f"{what}P50": percentile(taken, 0.5),
        f"{what}P99": percentile(taken, 0.99),
    }


def job(name: str) -> dict[str, Any]:
    """Return a Job of one pod that any node may run."""
    spec = pod("")["spec"]
    template = {"spec": {**spec, "restartPolicy": "Never"}}
    return manifest("Job", name, api="batch/v1", spec={"backoffLimit": 0, "template": template})
