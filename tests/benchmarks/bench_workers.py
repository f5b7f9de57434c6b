"""Pods per second through several lower clusters, with one process and with ``--workers``.

``python -m tests.benchmarks.bench_workers --rounds 3`` starts its own clusters, alternates between the numbers of
workers, and prints the figures and their ratio in each round. The API servers need more CPU than the virtual node, so
on a machine with few cores the ratio says little about a machine with many.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clusterset.model.names import LABEL_LOWER_CLUSTER
from controller_runtime import leaderelection, log, resources
from controller_runtime.client.client import Client
from hack.sandbox import Sandbox
from hack.sandbox.process import Process
from tests.benchmarks.load import LoadResult, run_load
from tests.benchmarks.stage import client_of, entry, until_ready
from tests.benchmarks.usage import usage
from tests.waiting import becomes, node_ready


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--pods", type=int, default=250, help="for each lower cluster")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="to compare with one process")
    return parser.parse_args(arguments)


async def main(arguments: Sequence[str]) -> int:
    """Run the loads and print the figures."""
    options = _parsed(arguments)
    log.configure("warn")
    async with (
        Sandbox(lower=options.clusters, kwok_nodes=1) as sandbox,
        await client_of(sandbox.upper) as upper,
    ):
        names = [f"vn-{cluster.name}" for cluster in sandbox.lower]
        file = sandbox.directory / "clusters.yaml"
        config = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "clusters": [entry(cluster, namespaces={"adopt": True}) for cluster in sandbox.lower],
        }
        file.write_text(json.dumps(config), encoding="utf-8")
        found: dict[int, list[float]] = {1: [], options.workers: []}
        for _ in range(options.rounds):
            for workers, rates in found.items():
                rates.append(await _measure(sandbox, upper, file, names, workers=workers, pods=options.pods))
        ratios = [several / one for one, several in zip(*found.values(), strict=True)]
        print(
            f"{options.workers} workers / 1: median {statistics.median(ratios):.2f}, rounds "
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
        )
    return 0


async def _measure(
    sandbox: Sandbox, upper: Client, file: Path, names: Sequence[str], *, workers: int, pods: int
) -> float:
    """Run one burst on all clusters at once; return pods per second until all run."""
    process = await sandbox.start_virtual_node(
        f"--config={file}", f"--workers={workers}", "--log-level=warn", name=f"workers-{workers}",
        env={"KUBELET_PORT": "0"},
    )  # fmt: skip
    await until_ready(sandbox.upper, *names)
    if workers > 1:
        # The first worker takes all clusters, and gives a part of them to the others.
        await becomes(lambda: _owners(upper), workers, what="every worker runs clusters")
    for name in names:
        await node_ready(sandbox.upper, name)
    before, begin = _cpu(process), time.perf_counter()
    loads: list[LoadResult] = await asyncio.gather(
        *(run_load(upper, node=name, count=pods, namespace=name) for name in names)
    )
    rate = pods * len(names) / max(load.running_in for load in loads)
    p99 = max(load.p99 for load in loads)
    cpu = (_cpu(process) - before) / (time.perf_counter() - begin)
    print(
        f"{workers} process{'es' if workers > 1 else ''}: {rate:6.1f} pods/s to Running, p99 {p99:5.2f} s, "
        f"{cpu:.2f} cores of the virtual node",
        flush=True,
    )
    await process.stop(seconds=60)
    return rate


async def _owners(upper: Client) -> int:
    """Return the number of replicas that run lower clusters."""
    leases = await upper.list(resources.LEASES, namespace="kube-system", label_selector=LABEL_LOWER_CLUSTER)
    return len({holder for lease in leases.items if (holder := leaderelection.holder_of(lease.to_dict()))})


def _cpu(process: Process) -> float:
    """Return the CPU seconds so far of a process and of its children that run."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    return sum(usage(pid).cpu for pid in (process.pid, *map(int, children)))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
