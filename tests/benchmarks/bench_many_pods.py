"""10,000 mirrored pods: memory, a restart, an outage of the lower API server, ``status`` and the page."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from hack.sandbox import Cluster
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from tests.benchmarks import request_counts
from tests.benchmarks.load import PodWatch, for_all, make_namespace, pod
from tests.benchmarks.stage import Stage, entry, progress, stage, start_nodes, until, until_ready
from tests.benchmarks.tables import target
from tests.benchmarks.usage import idle, usage

PODS, OUTAGE, CHANGED, IDLE = 10_000, 300.0, 50, 20.0
"""Number of pods, seconds of the outage, number of pods created and of pods deleted during the outage, and seconds in which
idle CPU is measured."""
ADOPT, CURRENT, ANSWER = 20.0, 10.0, 0.2
"""Targets in seconds: of the restart, after the outage, of ``status`` and the page."""
MEMORY = 180.0
"""Target in MiB with all pods."""
_NAMESPACE, _LIMIT = "many", 3600.0
_QUIET = 10.0
"""Seconds after the restart in which writes still count."""


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return figures and targets."""
    count, outage, seconds = (200, 10.0, 5.0) if quick else (PODS, OUTAGE, IDLE)
    web, metrics = free_ports(2)
    async with stage(kwok_nodes=10) as at:
        addresses = {"webAddress": f"{LOOPBACK}:{web}", "metricsAddress": f"{LOOPBACK}:{metrics}"}
        process = await start_nodes(at.sandbox, [entry(at.sandbox.lower[0])], **addresses)
        empty = usage(process.pid).rss_mib
        await make_namespace(at.upper, _NAMESPACE)
        async with PodWatch(at.upper, namespace=_NAMESPACE) as watch:
            await _create(at.upper, count, "old")
            await watch.until(watch.ran, count, limit=_LIMIT)
        share, full = await idle(at.sandbox, process.pid, seconds=seconds)
        figures: dict[str, Any] = {
            "pods": count,
            "emptyMiB": empty,
            "fullMiB": full,
            "peakMiB": usage(process.pid).peak_mib,
            "idleCpu": share,
            "statusSeconds": await _median(lambda: _status(at.sandbox.upper)),
            "pageSeconds": await _median(lambda: _page(f"http://{LOOPBACK}:{web}/api/state")),
        }
        progress(str(figures))
        figures |= await _restart(at, process, count, f"http://{LOOPBACK}:{metrics}/metrics")
        figures["currentSeconds"] = await _outage(at, outage)
        progress(str(figures))
    return figures | {"targets": _targets(figures)}


def _targets(found: dict[str, Any]) -> list[dict[str, Any]]:
    writes = found["writes"]
    return [
        target("memory", found["fullMiB"], MEMORY, "MiB"),
        target("restart until all pods are adopted", found["adoptSeconds"], ADOPT, "s"),
        target("writes by the restart", sum(writes.values()), 0, ""),
        target("current after an outage of the lower API server", found["currentSeconds"], CURRENT, "s"),
        target("`virtual-node status`", found["statusSeconds"], ANSWER, "s"),
        target("state of the page", found["pageSeconds"], ANSWER, "s"),
    ]


async def _create(upper: Client, count: int, wave: str) -> list[str]:
    """Create pods as fast as 32 clients can; return their names."""
    prefix = f"{wave}-{secrets.token_hex(2)}"
    created = [f"{prefix}-{number:05d}" for number in range(count)]

    async def create(name: str) -> None:
        body = pod(name, namespace=_NAMESPACE, node="vn-lower1")
        body["metadata"]["labels"]["wave"] = wave
        await upper.create(resources.PODS, body, namespace=_NAMESPACE)

    await for_all(created, create)
    return created


async def _median(measured: Callable[[], Awaitable[float]]) -> float:
    """Return the median of five measurements, in seconds."""
    return statistics.median([await measured() for _ in range(5)])


async def _status(upper: Cluster) -> float:
    """Return the seconds that ``virtual-node status`` takes, from its start to its end."""
    argv = [sys.executable, "-m", "virtual_node", "status", f"--kubeconfig={upper.kubeconfig}"]
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
    await process.wait()
    return time.perf_counter() - begun


async def _page(url: str) -> float:
    async with aiohttp.ClientSession() as session:
        begun = time.perf_counter()
        async with session.get(url) as answer:
            await answer.read()
        return time.perf_counter() - begun


async def _restart(at: Stage, process: Process, count: int, metrics: str) -> dict[str, Any]:
    """Restart the process; return the seconds until it has handled every pod, and its writes by cluster."""
    before = await request_counts.served_by(at.sandbox)
    await process.stop()
    begun = time.perf_counter()
    await process.start()
    await until(lambda: has_handled(metrics, count), seconds=_LIMIT)
    seconds, took = time.perf_counter() - begun, usage(process.pid)
    await asyncio.sleep(_QUIET)
    return {
        "adoptSeconds": seconds,
        "adoptCpuSeconds": took.cpu,
        "restartedMiB": took.rss_mib,
        "writes": request_counts.writes_by(before, await request_counts.served_by(at.sandbox)),
    }


async def scrape(url: str) -> list[Sample]:
    """Return the metrics of a process."""
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


async def has_handled(metrics: str, count: int) -> bool:
    """Report whether the queue of pods has had so many keys and is empty."""
    try:
        samples = await scrape(metrics)
    except aiohttp.ClientError:
        return False
    found = {sample.name: sample.value for sample in samples if sample.labels.get("name") == "pods-lower1"}
    done = found.get("workqueue_work_duration_seconds_count", 0)
    return done >= count and found.get("workqueue_depth") == 0


async def _outage(at: Stage, seconds: float) -> float:
    """Kill the lower API server, change pods meanwhile, and return the seconds until the lower cluster is current.

    They are counted from the time when the server is ready again.
    """
    cluster, lower = at.sandbox.lower[0], at.lower[0]
    doomed = await _create(at.upper, CHANGED, "doomed")
    async with PodWatch(at.upper, namespace=_NAMESPACE, label_selector="wave=doomed") as watch:
        await watch.until(watch.ran, CHANGED)
    await cluster.apiserver.kill()
    for name in doomed:
        await at.upper.delete(resources.PODS, name, namespace=_NAMESPACE)
    await _create(at.upper, CHANGED, "new")
    await asyncio.sleep(seconds)
    await cluster.apiserver.start()
    await cluster.wait_ready()
    begun = time.perf_counter()
    controllers = asyncio.create_task(_restart_others(cluster))
    await until(lambda: _is_current(lower), seconds=_LIMIT)
    taken = time.perf_counter() - begun
    await controllers
    await until_ready(at.sandbox.upper, "vn-lower1")
    return taken


async def _restart_others(cluster: Cluster) -> None:
    await cluster.restart_controllers()
    for node in cluster.nodes:
        await node.kill()
        await node.start()


async def _is_current(lower: Client) -> bool:
    """Report whether the lower cluster has all new pods, and all pods deleted in the outage are gone or being deleted."""
    try:
        new, doomed = [
            await lower.list(resources.PODS, namespace=_NAMESPACE, label_selector=f"wave={wave}")
            for wave in ("new", "doomed")
        ]
    except ApiError:
        return False
    remaining = [one for one in doomed.items if one.metadata.deletion_timestamp is None]
    return len(new.items) == CHANGED and not remaining
