"""The protocol of liqo-benchmarks: seconds until all pods of a Deployment have started, from 10 to 10,000 pods.

Three variants: a cluster of kwok nodes without virtual nodes, a virtual node for this cluster, and a virtual node
whose connection to this cluster has a round trip of 100 ms more. The order of the variants changes with the seed.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import Client
from hack.sandbox.process import Process
from tests import workloads
from tests.benchmarks.delay import delayed
from tests.benchmarks.load import PodWatch, make_namespace, pod
from tests.benchmarks.stage import progress, stage, start_node
from tests.benchmarks.usage import percentile, sampled, usage

RUNS, NODES = {10: 10, 100: 10, 1000: 5, 10_000: 1}, 100
"""Sizes as published, with their runs: published are ten of each. liqo's nodes are of kubemark instead of kwok."""
DELAY = 0.1
"""Seconds that the virtual node waits longer for each answer of the lower API server: half of it in each direction."""
DIRECT, NEAR, FAR = "kwok nodes", "virtual node", "virtual node, 100 ms"
_NAMESPACE = "load"
_LIMIT = 1800.0


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return a row for each run, and the process' CPU and memory during the largest ones of the first round."""
    runs = {10: 1, 100: 1} if quick else RUNS
    rows: list[dict[str, Any]] = []
    over_time: dict[str, list[list[float]]] = {}
    order = random.Random(seed)
    async with stage(kwok_nodes=10 if quick else NODES) as at:
        cluster = at.sandbox.lower[0]
        async with delayed(cluster.kubeconfig, port=cluster.port, seconds=DELAY) as distant:
            variants: list[tuple[str, Client, Process | None]] = [
                (DIRECT, at.lower[0], None),
                (NEAR, at.upper, await start_node(at.sandbox, "near", cluster.kubeconfig)),
                (FAR, at.upper, await start_node(at.sandbox, "far", distant)),
            ]
            for run in range(max(runs.values())):
                for count in (count for count, wanted in runs.items() if run < wanted):
                    for title, client, process in order.sample(variants, len(variants)):
                        watching: contextlib.AbstractAsyncContextManager[list[list[float]]]
                        watching = sampled(process.pid) if process else contextlib.nullcontext([])
                        async with watching as samples:
                            row = await _start_and_delete(client, count, process)
                        progress(f"{title}: {row}")
                        rows.append({"variant": title, "pods": count, "run": run, **row})
                        if run == 0 and count == max(runs) and process:
                            over_time[title] = samples
    return {"runs": rows, "overTime": over_time}


async def _start_and_delete(client: Client, count: int, process: Process | None) -> dict[str, float]:
    """Run a Deployment until all of its pods have started, delete it, and return the measurements."""
    await make_namespace(client, _NAMESPACE)
    before = usage(process.pid).cpu if process is not None else 0.0
    async with PodWatch(client, namespace=_NAMESPACE) as watch:
        begun = time.perf_counter()
        body = deployment(count, node=process.name if process is not None else "")
        await client.create(resources.DEPLOYMENTS, body, namespace=_NAMESPACE)
        await watch.until(watch.ran, count, limit=_LIMIT)
        taken = [watch.ran[name] - watch.seen[name] for name in watch.ran]
        deleted = time.perf_counter()
        await client.delete(
            resources.DEPLOYMENTS, "load", namespace=_NAMESPACE, propagation_policy="Background"
        )
        await watch.until(watch.gone, count, limit=_LIMIT)
        row = {
            "seconds": max(watch.ran.values()) - begun,
            "p50": percentile(taken, 0.5),
            "p99": percentile(taken, 0.99),
            "deleteSeconds": max(watch.gone.values()) - deleted,
        }
    if process is not None:
        after = usage(process.pid)
        row |= {"cpuSeconds": after.cpu - before, "peakMiB": after.peak_mib}
    return row


def deployment(count: int, *, node: str = "") -> dict[str, Any]:
    """Return a Deployment of so many pods, for one node or for any."""
    body = workloads.deployment(pod("load"), replicas=count)
    if node:
        body["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return body
