"""Throughput, latency and cost: N pods through a virtual node compared with the same N directly on a kwok node.

``python -m tests.benchmarks.bench_load --pods 2000`` starts its own clusters and prints both, and the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from hack.sandbox import Cluster, Sandbox
from tests.benchmarks.delay import delayed
from tests.benchmarks.load import LoadResult, run_load, usage

IDLE_SECONDS = 20.0


async def client_of(cluster: Cluster) -> Client:
    """Return a client of a sandbox cluster without a rate limit."""
    config = await kubeconfig.load(str(cluster.kubeconfig))
    return Client(config, qps=0, user_agent="benchmark", cluster=cluster.name, timeout=120)


def show(title: str, result: LoadResult) -> None:
    """Print one load's figures."""
    print(
        f"{title:<28} {result.rate:7.1f} pods/s to Running   p50 {result.p50:6.2f} s   p99 {result.p99:6.2f} s   "
        f"{result.delete_rate:7.1f} deletes/s",
        flush=True,
    )


def _cpu_of(sandbox: Sandbox) -> dict[str, float]:
    """Return the CPU seconds of every process of the sandbox so far."""
    found = {}
    for cluster in sandbox.clusters:
        for process in cluster.processes:
            found[f"{cluster.name}/{process.name}"] = usage(process.pid).cpu
    if sandbox.etcd is not None:
        found["etcd"] = usage(sandbox.etcd.pid).cpu
    found["benchmark"] = usage(os.getpid()).cpu
    return found


async def main(arguments: Sequence[str]) -> int:
    """Run both loads and print figures and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument(
        "--rate", type=float, default=None, help="pods per second to create (as fast as possible)"
    )
    parser.add_argument(
        "--delay", type=float, default=0.0, help="seconds that the lower apiserver's answers take longer"
    )
    parser.add_argument("--skip-direct", action="store_true")
    parser.add_argument("--log-level", default="warn")
    parser.add_argument("--flag", action="append", default=[], help="further flags of the virtual node")
    options = parser.parse_args(arguments)
    async with Sandbox(lower=1, progress=lambda line: print(f"# {line}", flush=True)) as sandbox:
        lower, upper = await client_of(sandbox.lower[0]), await client_of(sandbox.upper)
        async with lower, upper, contextlib.AsyncExitStack() as stack:
            lower_kubeconfig = sandbox.lower[0].kubeconfig
            if options.delay:
                lower_kubeconfig = await stack.enter_async_context(
                    delayed(lower_kubeconfig, port=sandbox.lower[0].port, seconds=options.delay)
                )
            direct = None
            if not options.skip_direct:
                direct = await run_load(lower, node="lower1-node-0", count=options.pods, rate=options.rate)
                show("straight on a kwok node", direct)
            process = await sandbox.start_virtual_node(
                "--nodename=vn",
                f"--client-kubeconfig={lower_kubeconfig}",
                "--adopt-namespaces=*",
                f"--log-level={options.log_level}",
                *options.flag,
                env={"KUBELET_PORT": "0"},
            )
            await sandbox.upper.kubectl("wait", "--for=create", "node/vn", "--timeout=30s")
            await sandbox.upper.kubectl("wait", "--for=condition=Ready", "node/vn", "--timeout=30s")
            before = usage(process.pid)
            await asyncio.sleep(IDLE_SECONDS)
            idle = usage(process.pid)
            print(
                f"idle: {(idle.cpu - before.cpu) / IDLE_SECONDS:.2%} CPU, {idle.rss_mib:.0f} MiB", flush=True
            )
            others_before = _cpu_of(sandbox)
            mirrored = await run_load(upper, node="vn", count=options.pods, rate=options.rate)
            show("through a virtual node", mirrored)
            after = usage(process.pid)
            spent = after.cpu - idle.cpu
            print(
                f"virtual node: {spent:.1f} CPU s = {spent / options.pods * 1000:.1f} ms per pod for its whole life, "
                f"peak {after.peak_mib:.0f} MiB"
            )
            now = _cpu_of(sandbox)
            spent_by = {name: now[name] - others_before[name] for name in now}
            print("CPU s: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent_by.items()))
            if direct is not None:
                print(
                    f"ratio: {mirrored.rate / direct.rate:.2f} of the direct rate, deletes {mirrored.delete_rate / direct.delete_rate:.2f}, "
                    f"p99 {mirrored.p99 - direct.p99:+.2f} s"
                )
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
