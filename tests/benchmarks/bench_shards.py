"""Cost over the number of lower clusters and pods, and sharded replicas: growth, a killed replica, requests when idle.

The API servers are in memory and in this process, and a replica is taken to have a core of its own. On that core it has the
time that is left beside its work when idle, and it needs the CPU time that a pod costs. So neither the machine's number of
cores nor the API servers limit the throughput: it is the number of pods divided by the time that the slowest replica needs.
The replicas start their pods one after the other, because on fewer cores they would slow each other down.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.canned_pods import NAMESPACE
from tests.benchmarks.memory_installation import LIMIT, Installation, installation, pod
from tests.benchmarks.stage import until
from tests.benchmarks.tables import condition, target
from tests.benchmarks.usage import usage

CLUSTERS, PODS, REPLICAS, IDLE = 40, 4000, 4, 30.0
"""Lower clusters; pods; replicas that are compared with a single one; seconds in which requests and CPU time when idle are
measured."""
_CLUSTERS, _PODS = (10, 160), (1000, 16_000)
"""Further numbers of clusters, with ``PODS``, and of pods, on ``CLUSTERS``, for one replica."""
LEASE, RETRY = 15.0, 2.0
"""Seconds of ``leaderElection.leaseDuration`` and ``retryPeriod``."""
GROWTH, REQUESTS = 3.5, 2.0
"""Targets: throughput with all replicas to that with one; upper requests per second and cluster when idle."""
_PREFIX = "virtual-node-cluster-"
_AHEAD = 100
"""Pods created before earlier ones run, so that the API servers, which share one core, answer in time."""
_QUIET = 10.0
"""Seconds after the last pod in which CPU time still counts."""


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return the figures of one replica with several sizes, and of several replicas, and the targets."""
    if quick:
        return await _compare(8, 400, 5.0, others=[])
    others = [*((clusters, PODS) for clusters in _CLUSTERS), *((CLUSTERS, pods) for pods in _PODS)]
    return await _compare(CLUSTERS, PODS, IDLE, others=others)


async def _compare(
    clusters: int, pods: int, seconds: float, *, others: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Compare one replica with several, and measure one replica with ``others``: numbers of clusters and pods."""
    alone = await _run(clusters, pods, replicas=1, idle=seconds)
    several = await _run(clusters, pods, replicas=REPLICAS, idle=seconds)
    more = [await _run(*sizes, replicas=1, idle=seconds) for sizes in others]
    growth = several["podsPerSecond"] / alone["podsPerSecond"]
    targets = [
        condition(
            f"throughput of {REPLICAS} replicas to that of one",
            f"≥ {GROWTH:g}",
            f"{growth:.2f}",
            is_met=growth >= GROWTH,
        ),
        target("clusters of a killed replica are taken", several["takenSeconds"], LEASE + RETRY, "s"),
        target("upper requests per second and cluster, idle", several["idleRequests"], REQUESTS, ""),
    ]
    return {"runs": [alone, several, *more], "growth": growth, "targets": targets}


async def _run(clusters: int, pods: int, *, replicas: int, idle: float) -> dict[str, Any]:
    """Return the figures of so many replicas."""
    async with installation(clusters=clusters) as at, contextlib.AsyncExitStack() as stack:
        processes = []
        for _ in range(replicas):
            election = {"enabled": True, "mode": "Sharded", "leaseDuration": LEASE, "retryPeriod": RETRY}
            settings = at.settings(leaderElection=election)
            processes.append(await stack.enter_async_context(at.daemon(Path.cwd(), settings)))
        await at.until(lambda: len(_holders(at)) == clusters and len(set(_holders(at).values())) == replicas)
        await at.ready()
        await _settled(at)
        empty = [usage(process.pid) for process in processes]
        begun = time.perf_counter()
        for number, node in enumerate(_nodes(at, pods)):
            at.upper.storage.create("pods", pod(number, node=node), namespace=NAMESPACE)
            if not number % _AHEAD:
                await at.until(partial(_has_started, at, number - _AHEAD))
        await at.until(lambda: len(at.running) == pods)
        await asyncio.sleep(_QUIET)
        full, wall = [usage(process.pid) for process in processes], time.perf_counter() - begun
        requests, shares = await _idle(at, processes, idle)
        # What a replica does when idle also costs while pods start, but does not belong to them.
        cpu = [
            later.cpu - earlier.cpu - share * wall
            for earlier, later, share in zip(empty, full, shares, strict=True)
        ]
        slowest = max(seconds / (1 - share) for seconds, share in zip(cpu, shares, strict=True))
        figures = {
            "clusters": clusters,
            "pods": pods,
            "replicas": replicas,
            "cpuSeconds": cpu,
            "idleCpu": shares,
            "podsPerSecond": pods / slowest,
            "wallSeconds": wall,
            "emptyMiB": [found.rss_mib for found in empty],
            "fullMiB": [found.rss_mib for found in full],
            "idleRequests": requests / clusters,
            "takenSeconds": await _killed(at, processes) if replicas > 1 else None,
        }
        print(json.dumps(figures), flush=True)
        return figures


def _nodes(at: Installation, pods: int) -> Iterator[str]:
    """Yield the node of each pod: replica by replica, those of a replica in turn."""
    clusters: dict[str, list[str]] = {}
    for lease, holder in _holders(at).items():
        clusters.setdefault(holder, []).append(lease.removeprefix(f"{_PREFIX}lower-"))
    share = pods // sum(map(len, clusters.values()))
    for numbers in clusters.values():
        for _ in range(share):
            yield from (f"vn-{number}" for number in numbers)


def _has_started(at: Installation, number: int) -> bool:
    return len(at.running) > number


def _holders(at: Installation) -> dict[str, str]:
    """Return the holder of each cluster's Lease, by the name of the Lease."""
    leases = at.upper.storage.objects["leases"].values()
    held = {lease["metadata"]["name"]: lease["spec"].get("holderIdentity") or "" for lease in leases}
    return {name: holder for name, holder in held.items() if name.startswith(_PREFIX) and holder}


async def _settled(at: Installation) -> None:
    """Wait until no cluster has changed its replica for some seconds."""

    async def unchanged() -> bool:
        before = _holders(at)
        await asyncio.sleep(_QUIET)
        return before == _holders(at)

    await until(unchanged, seconds=LIMIT)


async def _idle(at: Installation, processes: Sequence[Process], seconds: float) -> tuple[float, list[float]]:
    """Return the requests per second to the upper API server, and the share of a core that each replica uses."""
    requests, begun = sum(at.upper.requests.values()), time.perf_counter()
    before = [usage(process.pid).cpu for process in processes]
    await asyncio.sleep(seconds)
    taken = time.perf_counter() - begun
    shares = [(usage(process.pid).cpu - cpu) / taken for process, cpu in zip(processes, before, strict=True)]
    return (sum(at.upper.requests.values()) - requests) / taken, shares


async def _killed(at: Installation, processes: Sequence[Process]) -> float:
    """Kill a replica; return the seconds until the other replicas hold all clusters."""
    processes[0].kill()
    await processes[0].wait()
    begun = time.perf_counter()
    await at.until(lambda: len(set(_holders(at).values())) == len(processes) - 1)
    return time.perf_counter() - begun


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=CLUSTERS)
    parser.add_argument("--pods", type=int, default=PODS)
    options = parser.parse_args(arguments)
    if options.pods % options.clusters:
        parser.error(f"--pods: not a multiple of {options.clusters} clusters, which get equally many")
    print(json.dumps(asyncio.run(_compare(options.clusters, options.pods, IDLE, others=[])), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
