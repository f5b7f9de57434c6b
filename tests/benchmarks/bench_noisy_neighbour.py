"""Cost of noisy and hostile neighbours for a quiet tenant: the same load of pods without and with them, in one run.

``python -m tests.benchmarks.bench_noisy_neighbour --pods 200 --over-quota 10000`` starts an upper and two
lower clusters. The quiet tenant creates pods in the first one at a steady rate, first alone, then while

- a tenant of the same lower cluster has many pods over its quota, one pod with 3,000 references, and pods
  with a ``clusterSelector`` that the lower API server repeats in its errors and that is slow to redact in logs,
- 1,000 TLS connections to the kubelet port send nothing,
- a third lower cluster's API server is ``tests.hostile_server``: 64 MiB bodies, gzip bombs, JSON bombs,
- a fourth one lists without end, with valid objects,
- a tenant creates single pods whose parts multiply: ports x containers, annotations x downward API items, ConfigMap
  bytes x containers, annotation bytes x variables,
- a tenant without a virtual pod creates Services of 1 MB,
- a tenant has NetworkPolicies with many namespace selectors while labels of namespaces change,
- a user of the quiet tenant's lower cluster creates objects of 1 MB with virtual-node's label, and events of 1 MB.

It prints the targets, the measurements, and whether they meet the targets.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.client.client import Client
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.ports import free_ports
from tests.background import working
from tests.benchmarks import attacks
from tests.benchmarks.bench_load import show
from tests.benchmarks.bench_many_pods import scrape
from tests.benchmarks.load import LoadResult, PodWatch, for_all, make_namespace, pod, run_load
from tests.benchmarks.stage import client_of, until_ready
from tests.benchmarks.usage import usage
from tests.hostile_server import KINDS
from tests.kubeconfigs import whole, write

_NOISY = "noisy"
_LOOPBACK = "127.0.0.1"
_GROWTH, _STALL, _PEAK = 0.2, 0.1, 300.0
"""Targets: seconds of p99, seconds of a stall, MiB."""
_HOSTILE = ["big", "compressed", "values", "deep", "endless", "errors"]


async def main(arguments: Sequence[str]) -> int:
    """Run both loads and print the table; return 1 when a target is missed."""
    options = _parser().parse_args(arguments)
    async with Sandbox(lower=2, progress=lambda line: print(f"# {line}", flush=True)) as sandbox:
        hostile, endless, metrics, kubelet = free_ports(4)
        file = sandbox.directory / "virtual-node.json"
        configuration = _configuration(sandbox, hostile=(hostile, endless), metrics=metrics, kubelet=kubelet)
        file.write_text(json.dumps(configuration))
        process = await sandbox.start_virtual_node("--config", str(file), f"--log-level={options.log_level}")
        await until_ready(sandbox.upper, "vn1", "vn2")
        upper, lower = await client_of(sandbox.upper), await client_of(sandbox.lower[0])
        async with upper, lower, contextlib.AsyncExitStack() as stack:
            alone = await _load(upper, options, "quiet-alone")
            show("alone", alone)
            before = await _stalls(metrics)
            unready: list[str] = []
            await stack.enter_async_context(working(_watch_nodes(upper, unready)))

            async def step(what: str) -> None:
                took, last = usage(process.pid), _longest(before, await _stalls(metrics))
                print(
                    f"# {what:<24} so far: peak {took.peak_mib:4.0f} MiB, CPU {took.cpu:5.1f} s, stall ≤ {last:g} s",
                    flush=True,
                )

            await step("alone")
            await stack.enter_async_context(_idle_connections(kubelet, options.connections))
            await step(f"{options.connections} idle TLS connections")
            if options.kinds:
                await sandbox.start_process("hostile", _server(hostile, *options.kinds))
                await asyncio.sleep(20)
                await step("hostile lower API server")
            await sandbox.start_process("endless", _server(endless, "many"))
            await asyncio.sleep(30)
            await step("lists without end")
            await _make_noise(upper, lower, options)
            await asyncio.sleep(10)
            await step(f"{options.references} references")
            # As fast as eight clients can.
            over = [
                pod(f"over-{number:05}", namespace=_NOISY, node="vn1") for number in range(options.over_quota)
            ]
            await for_all(over, lambda body: upper.create(resources.PODS, body), clients=8)
            await asyncio.sleep(10)
            await step(f"{options.over_quota} pods over quota")
            for what, attack in (
                ("large unrelated Services", attacks.large_services(upper)),
                ("products in pods", attacks.products(upper)),
                ("namespace selectors", attacks.selectors(upper)),
                ("forged lower objects", attacks.forged(upper, lower)),
            ):
                await attack
                await asyncio.sleep(10)
                await step(what)
            await stack.enter_async_context(working(attacks.relabel(upper)))
            beside = await _load(upper, options, "quiet-beside")
            show("beside noisy neighbours", beside)
            stall = _longest(before, await _stalls(metrics))
            peak = usage(process.pid).peak_mib
    rows = [
        ("p99 create → Running grows by", f"≤ {_GROWTH} s", f"{beside.p99 - alone.p99:+.2f} s",
         beside.p99 - alone.p99 <= _GROWTH),
        ("event loop stalls", f"< {_STALL} s", f"≤ {stall:g} s", stall <= _STALL),
        ("peak memory", f"< {_PEAK:.0f} MiB", f"{peak:.0f} MiB", peak < _PEAK),
        ("other lower clusters", "Ready", ", ".join(sorted(set(unready))) or "Ready", not unready),
    ]  # fmt: skip
    print(f"{'target':<32}{'wanted':<12}{'measured':<22}")
    for what, wanted, found, is_met in rows:
        print(f"{what:<32}{wanted:<12}{found:<22}{'met' if is_met else 'MISSED'}")
    return 0 if all(row[-1] for row in rows) else 1


def _server(port: int, *kinds: str) -> list[str]:
    """Return the command of a hostile API server."""
    return [sys.executable, "-m", "tests.hostile_server", str(port), *kinds, "--healthy"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=200, help="of the quiet tenant, for each measurement")
    parser.add_argument("--rate", type=float, default=10.0, help="of them per second")
    parser.add_argument("--over-quota", type=int, default=10_000)
    parser.add_argument("--references", type=int, default=3000)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=_HOSTILE)
    parser.add_argument("--log-level", default="info")
    return parser


def _configuration(sandbox: Sandbox, *, hostile: Sequence[int], metrics: int, kubelet: int) -> dict[str, Any]:
    kubeconfigs = [
        write(
            sandbox.directory / f"hostile-{port}.kubeconfig",
            whole(cluster={"server": f"http://{_LOOPBACK}:{port}"}),
        )
        for port in hostile
    ]
    real: list[Cluster] = sandbox.lower
    return {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "metricsAddress": f"{_LOOPBACK}:{metrics}",
        "kubelet": {"address": _LOOPBACK, "port": kubelet},
        "clusters": [
            {
                "name": "lower1",
                "nodeName": "vn1",
                "kubeconfig": str(real[0].kubeconfig),
                "port": kubelet,
                "follow": ["networkPolicies"],
            },
            {"name": "lower2", "nodeName": "vn2", "kubeconfig": str(real[1].kubeconfig), "port": 0},
            {"name": "hostile", "nodeName": "vn3", "kubeconfig": kubeconfigs[0], "port": 0},
            {"name": "endless", "nodeName": "vn4", "kubeconfig": kubeconfigs[1], "port": 0},
        ],
    }


async def _load(upper: Client, options: argparse.Namespace, namespace: str) -> LoadResult:
    return await run_load(upper, node="vn1", count=options.pods, rate=options.rate, namespace=namespace)


async def _make_noise(upper: Client, lower: Client, options: argparse.Namespace) -> None:
    """Create the noisy namespace with a lower quota, the pod of many references and those that are slow to redact."""
    await make_namespace(upper, _NOISY)
    await upper.create(resources.PODS, pod("first", namespace=_NOISY, node="vn1"))
    async with PodWatch(lower, namespace=_NOISY) as watch:
        await watch.until(watch.seen, 1)
    quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}}
    await lower.create(resources.RESOURCE_QUOTAS, quota, namespace=_NOISY)
    many = pod("references", namespace=_NOISY, node="vn1")
    many["spec"]["containers"][0]["envFrom"] = [
        {"configMapRef": {"name": f"c{number}"}} for number in range(options.references)
    ]
    await upper.create(resources.PODS, many)
    for number in range(10):
        slow = pod(f"slow-{number}", namespace=_NOISY, node="vn1")
        selector = {"nodeSelector": {"key": "eyJaaaaaaaa-" * 8000}}
        slow["metadata"]["annotations"] = {"clusterSelector": json.dumps(selector)}
        await upper.create(resources.PODS, slow)


@contextlib.asynccontextmanager
async def _idle_connections(port: int, count: int) -> AsyncIterator[None]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    writers = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            writers.append((await asyncio.open_connection(_LOOPBACK, port, ssl=context))[1])
    print(f"# {len(writers)} idle TLS connections", flush=True)
    try:
        yield
    finally:
        for writer in writers:
            writer.close()


async def _watch_nodes(upper: Client, unready: list[str]) -> None:
    """Record virtual nodes of real lower clusters that are not Ready, every second."""
    while True:
        for name in ("vn1", "vn2"):
            node = await upper.get(resources.NODES, name)
            if not is_true(node["status"], "Ready"):
                unready.append(name)
        await asyncio.sleep(1)


async def _stalls(port: int) -> dict[float, float]:
    """Return the number of event loop timers that were late by at most so many seconds, cumulated."""
    return {
        float(sample.labels["le"]): sample.value
        for sample in await scrape(f"http://{_LOOPBACK}:{port}/metrics")
        if sample.name == "virtual_node_event_loop_stall_seconds_bucket"
    }


def _longest(before: dict[float, float], after: dict[float, float]) -> float:
    """Return the smallest bucket that has all timers between two measurements."""
    total = after[float("inf")] - before.get(float("inf"), 0.0)
    return min(bound for bound, value in after.items() if value - before.get(bound, 0.0) >= total)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
