"""Twenty real lower control planes and sixty virtual nodes behind one process: time to Ready, memory, idle CPU."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.client.client import Client
from tests.benchmarks.load import PodWatch, make_namespace, pod
from tests.benchmarks.stage import entry, progress, stage, start_nodes, until
from tests.benchmarks.usage import idle, usage

CLUSTERS, NODES, IDLE = 20, 3, 60.0
"""Lower clusters; virtual nodes of each; seconds in which idle CPU is measured."""
_NAMESPACE, _LIMIT = "clusters", 600.0


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return figures of one process for all clusters, then of a pod on each virtual node."""
    clusters, nodes, seconds = (2, 2, 5.0) if quick else (CLUSTERS, NODES, IDLE)
    async with stage(kwok_nodes=nodes) as at:
        for _ in range(clusters - 1):
            # One after the other, because a control plane needs seconds of CPU time to start.
            await at.sandbox.add_lower()
            progress(f"{len(at.sandbox.lower)} lower clusters")
        entries = [
            entry(
                one,
                nodes=[
                    {
                        "name": f"vn-{one.name}-{number}",
                        "nodeSelector": {"kubernetes.io/hostname": f"{one.name}-node-{number}"},
                    }
                    for number in range(nodes)
                ],
            )
            for one in at.sandbox.lower
        ]
        begun = time.perf_counter()
        starting = asyncio.create_task(start_nodes(at.sandbox, entries))
        await until(lambda: _are_ready(at.upper, clusters * nodes), seconds=_LIMIT)
        ready = time.perf_counter() - begun
        process = await starting
        share, rss = await idle(at.sandbox, process.pid, seconds=seconds, limit=_LIMIT)
        await make_namespace(at.upper, _NAMESPACE)
        async with PodWatch(at.upper, namespace=_NAMESPACE) as watch:
            begun = time.perf_counter()
            for one in entries:
                for node in one["nodes"]:
                    body = pod(f"on-{node['name']}", namespace=_NAMESPACE, node=node["name"])
                    await at.upper.create(resources.PODS, body, namespace=_NAMESPACE)
            await watch.until(watch.ran, clusters * nodes)
            pods = max(watch.ran.values()) - begun
        return {
            "clusters": clusters,
            "virtualNodes": clusters * nodes,
            "readySeconds": ready,
            "rssMiB": rss,
            "idleCpu": share,
            "podsSeconds": pods,
            "peakMiB": usage(process.pid).peak_mib,
        }


async def _are_ready(upper: Client, count: int) -> bool:
    found = await upper.list(resources.NODES)
    return sum(is_true(node.status, "Ready") for node in found.items) == count
