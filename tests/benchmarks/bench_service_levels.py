"""The largest churn that keeps vCluster's service levels: on a kwok node directly, and through a virtual node.

The churn is doubled until a level fails, then bisected to 15 %. Each try lasts a minute: pods are created at a
constant rate, and deleted after ten seconds. A pod has converged if it starts within five seconds, Kubernetes' own
objective for the start of a pod.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial
from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import Client
from hack.sandbox import Cluster
from tests.benchmarks.load import PodWatch, make_namespace, pod
from tests.benchmarks.service_levels import Served, largest, levels
from tests.benchmarks.stage import entry, progress, stage, start_nodes

FIRST, SECONDS, LIFE, START = 10.0, 60.0, 10.0, 5.0
"""First churn in pods per second; seconds of a try, of a pod's life, and until a pod must have started."""
DIRECT, OURS = "kwok nodes", "virtual node"
_NAMESPACE = "levels"


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return the largest churn of both variants, and a row for each try."""
    first, seconds, rises = (2.0, 5.0, 2) if quick else (FIRST, SECONDS, 10)
    tries: list[dict[str, Any]] = []
    found = {}
    async with stage(kwok_nodes=5) as at:
        lower = at.sandbox.lower[0]
        await start_nodes(at.sandbox, [entry(lower, namespaces={"adopt": ["*"]})])
        for variant, client, node, clusters in (
            (DIRECT, at.lower[0], "lower1-node-0", [lower]),
            (OURS, at.upper, "vn-lower1", [at.sandbox.upper, lower]),
        ):
            once = partial(_try, client, node, clusters, seconds=seconds)

            async def is_kept(rate: float, variant: str = variant, once: Any = once) -> bool:
                row = await once(rate=rate)
                tries.append({"variant": variant, "rate": rate, **row})
                progress(str(tries[-1]))
                return bool(row["isKept"])

            found[variant] = await largest(is_kept, first=first, rises=rises)
    return {"largest": found, "tries": tries}


async def _try(
    client: Client, node: str, clusters: list[Cluster], *, rate: float, seconds: float
) -> dict[str, Any]:
    """Run one churn; return the worst levels of the clusters."""
    await make_namespace(client, _NAMESPACE)
    prefix, sent = f"churn-{secrets.token_hex(2)}", {}
    async with PodWatch(client, namespace=_NAMESPACE) as watch:
        before = [await _served(one) for one in clusters]
        begun = time.perf_counter()

        async def live(name: str) -> None:
            sent[name] = time.perf_counter()
            await client.create(
                resources.PODS, pod(name, namespace=_NAMESPACE, node=node), namespace=_NAMESPACE
            )
            await asyncio.sleep(LIFE)
            await client.delete(resources.PODS, name, namespace=_NAMESPACE)

        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
                group.create_task(live(f"{prefix}-{number:06d}"))
        taken = time.perf_counter() - begun
        after = [await _served(one) for one in clusters]
        started = sum(watch.ran.get(name, begun + taken) - at <= START for name, at in sent.items())
        await watch.until(watch.gone, len(sent))
    found = [
        levels(one, other, seconds=taken, created=len(sent), started=started)
        for one, other in zip(before, after, strict=True)
    ]
    return {
        "apiP99": max(one["apiP99"] for one in found),
        "errors": max(one["errors"] for one in found),
        "convergence": found[0]["convergence"],
        "createdPerSecond": (len(sent) - 1) / (max(sent.values()) - begun) if len(sent) > 1 else 0.0,
        "isKept": all(one["isKept"] for one in found),
    }


async def _served(cluster: Cluster) -> Served:
    return Served((await cluster.kubectl("get", "--raw=/metrics")).stdout)
