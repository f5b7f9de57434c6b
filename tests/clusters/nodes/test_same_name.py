"""Two virtual-node processes with the same --nodename: one works, the other waits, reports so, and takes over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process, start_time
from tests.clusters.nodes.test_faults import MIRRORING, in_log
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready
from virtual_node.controllers.node_lease import process_of

NODE = "vn-twice"
WAITING = "another process mirrors this virtual node"
_SHORT = 8.0
_SOON = 15.0
"""Seconds for "immediately" on a busy machine; the Lease lasts 40."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def twice(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Clusters without real nodes."""
    async with simulated(lower=1) as running:
        yield running


async def _start(sandbox: Sandbox, name: str, *flags: str) -> Process:
    lower = sandbox.lower[0]
    return await sandbox.start_virtual_node(
        f"--client-kubeconfig={lower.kubeconfig}",
        f"--nodename={NODE}",
        "--adopt-namespaces=*",
        *flags,
        name=name,
        env={"KUBELET_PORT": "0"},
    )


async def _unready(address: str) -> str:
    """Return the response of /readyz; empty when it is ready."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/readyz?verbose") as answer:
        return "" if answer.status == 200 else await answer.text()


async def _holder(upper: Cluster) -> str:
    lease = await get(upper, "kube-node-lease", "lease", NODE)
    assert lease["spec"]["holderIdentity"] == NODE
    return process_of(lease, NODE)


async def test_second_process_takes_over_a_killed_first_before_the_lease_expires(twice: Sandbox):
    """It is not ready and names the node; after SIGKILL of the first it works within seconds, and no pod is lost."""
    upper, lower = twice.upper, twice.lower[0]
    namespace = "twice"
    await make_namespace(upper, namespace)
    first = await _start(twice, "first")
    await node_ready(upper, NODE)
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    second = await _start(twice, "second", f"--metrics-addr={address}")
    await in_log(second, WAITING)
    assert "[-]clusters failed" in await _unready(address)
    await in_log(second, f"not mirroring yet: {NODE} (node {NODE} is mirrored by another process")
    await create(upper, namespace, pod("web", "sleep 3600", node=NODE))
    await ready(upper, namespace, "web")
    before = await get(lower, namespace, "pod", "web")
    assert MIRRORING not in second.log.read_text(encoding="utf-8")
    assert WAITING not in first.log.read_text(encoding="utf-8")

    begin = time.monotonic()
    await first.kill()
    await in_log(second, MIRRORING)
    assert time.monotonic() - begin < _SOON

    async def is_ready() -> bool:
        return not await _unready(address)

    await eventually(is_ready, what="the second is ready")
    assert (await get(lower, namespace, "pod", "web"))["metadata"]["uid"] == before["metadata"]["uid"]

    # The same process again: after SIGKILL, and after a graceful stop, which releases the Lease.
    for end in (second.kill, second.stop):
        await end()
        begin = time.monotonic()
        times = second.log.read_text(encoding="utf-8").count(MIRRORING)
        await second.start()
        await in_log(second, MIRRORING, times=times + 1)
        assert time.monotonic() - begin < _SOON
    assert WAITING not in second.log.read_text(encoding="utf-8").rpartition(MIRRORING)[2]
    await second.stop()
    assert not await _holder(upper)


async def test_another_installation_waits_until_the_lease_of_a_killed_one_expires(twice: Sandbox):
    """Two elections are independent. Never both work, and the second takes over without help."""
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "leaseDuration": _SHORT,
        "clusters": [{"name": NODE, "kubeconfig": str(twice.lower[0].kubeconfig)}],
    }
    file = twice.directory / "short.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")

    async def start(name: str) -> Process:
        return await twice.start_virtual_node(
            f"--config={file}", "--leader-elect", f"--leader-elect-resource-name={name}", name=name,
            env={"KUBELET_PORT": "0"},
        )  # fmt: skip

    first = await start("one")
    await in_log(first, MIRRORING)
    second = await start("two")
    await in_log(second, WAITING)
    await asyncio.sleep(2 * _SHORT)
    assert MIRRORING not in second.log.read_text(encoding="utf-8")
    begin = time.monotonic()
    await first.kill()
    await in_log(second, MIRRORING)
    # From the last renewal, which was up to a quarter of the Lease's duration ago.
    assert 0.75 * _SHORT - 1 < time.monotonic() - begin < _SHORT + _SOON
    assert await _holder(twice.upper) == "kube-system/two"
    await second.stop()


@pytest.mark.parametrize("elected", [True, False])
async def test_second_process_starts_at_once_when_the_first_stops(twice: Sandbox, *, elected: bool):
    """With and without --leader-elect: waiting for the node's Lease is not slower than the election."""
    flags = ["--leader-elect", "--leader-elect-resource-name=twice"] if elected else []
    first = await _start(twice, f"stops-{elected}", *flags)
    await in_log(first, MIRRORING)
    second = await _start(twice, f"follows-{elected}", *flags)
    await in_log(second, "another process leads" if elected else WAITING)
    begin = time.monotonic()
    await first.stop()
    await in_log(second, MIRRORING)
    assert time.monotonic() - begin < _SOON
    assert (await _holder(twice.upper) == "kube-system/twice") is elected
    await second.stop()


async def _owners(upper: Cluster, election: str) -> dict[str, str]:
    """Return the holder of each cluster's Lease."""
    labels = f"virtual-node.io/lower-cluster,virtual-node.io/election={election}"
    leases = await get(upper, "kube-system", "leases", labels=labels)
    return {
        lease["metadata"]["labels"]["virtual-node.io/lower-cluster"]: lease["spec"]["holderIdentity"]
        for lease in leases["items"]
    }


async def test_sharded_replicas_divide_the_lower_clusters(twice: Sandbox):
    """A second replica takes half of them; it takes all within the lease duration after the first was killed."""
    upper, namespace = twice.upper, "sharded"
    nodes = [f"shard-{number}" for number in range(4)]
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "leaderElection": {
            "enabled": True, "mode": "Sharded", "name": "shards", "leaseDuration": _SHORT, "renewDeadline": 5,
            "retryPeriod": 1,
        },
        "clusters": [{"name": node, "kubeconfig": str(twice.lower[0].kubeconfig)} for node in nodes],
    }  # fmt: skip
    file = twice.directory / "sharded.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    await make_namespace(upper, namespace)

    async def counts() -> list[int]:
        return sorted(Counter((await _owners(upper, "shards")).values()).values())

    async def ports() -> dict[str, int]:
        """Return the kubelet port of each node, which shows the process that serves it."""
        found = (await get(upper, "", "nodes"))["items"]
        return {
            node["metadata"]["name"]: node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
            for node in found
            if node["metadata"]["name"] in nodes
        }

    def start(name: str) -> Any:
        return twice.start_virtual_node(f"--config={file}", name=name, env={"KUBELET_PORT": "0"})

    first = await start("shards-1")
    for node in nodes:
        await node_ready(upper, node)
    await create(upper, namespace, *[pod(f"on-{node}", "sleep 3600", node=node) for node in nodes])
    for node in nodes:
        await ready(upper, namespace, f"on-{node}")
    before = await get(twice.lower[0], namespace, "pods")
    alone = await ports()
    second = await start("shards-2")
    await becomes(counts, [2, 2])
    await in_log(second, MIRRORING, times=2)

    async def moved() -> int:
        return sum(port != alone[node] for node, port in (await ports()).items())

    await becomes(moved, 2)
    begin = time.monotonic()
    await first.kill()
    await in_log(second, MIRRORING, times=4)
    assert time.monotonic() - begin < _SHORT + _SOON
    await create(upper, namespace, *[pod(f"later-{node}", "sleep 3600", node=node) for node in nodes])
    for node in nodes:
        await ready(upper, namespace, f"later-{node}")
    # A rolling update: the successor is there first.
    third = await start("shards-3")
    await becomes(counts, [2, 2])
    await second.stop()
    await in_log(third, MIRRORING, times=4)
    after = await get(twice.lower[0], namespace, "pods")
    assert {one["metadata"]["uid"] for one in before["items"]} <= {
        one["metadata"]["uid"] for one in after["items"]
    }
    assert len(after["items"]) == 2 * len(nodes)
    await third.stop()
    assert set((await _owners(upper, "shards")).values()) == {""}


async def test_workers_divide_the_lower_clusters_of_one_command(twice: Sandbox):
    """One port has the metrics and the health of both; a killed worker gets its clusters back before its Lease expires."""
    upper, namespace = twice.upper, "workers"
    nodes = [f"worker-{number}" for number in range(2)]
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "leaderElection": {"name": "workers", "leaseDuration": 120, "renewDeadline": 100},
        "clusters": [{"name": node, "kubeconfig": str(twice.lower[0].kubeconfig)} for node in nodes],
    }
    file = twice.directory / "workers.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    metrics, port = f"{LOOPBACK}:{free_ports(1)[0]}", _page_port()
    await make_namespace(upper, namespace)
    parent = await twice.start_virtual_node(
        f"--config={file}", "--workers=2", f"--metrics-addr={metrics}", f"--web-addr={LOOPBACK}:{port}",
        name="workers", env={"KUBELET_PORT": "0"},
    )  # fmt: skip
    for node in nodes:
        await node_ready(upper, node)

    async def is_ready() -> bool:
        return not await _unready(metrics)

    async def owned() -> list[str]:
        """Return the labels of the metric of owned clusters, from the page of the command."""
        text = await _read(f"http://{metrics}/metrics")
        return sorted(line for line in text.splitlines() if line.startswith("virtual_node_owned_cluster{"))

    async def workers() -> dict[str, str]:
        """Return the number of the worker by the virtual node that it owns."""
        found = await _owners(upper, "workers")
        return {node: owner.rpartition("-")[0].rpartition(".")[2] for node, owner in found.items()}

    async def divided() -> bool:
        return set((await workers()).values()) == {"1", "2"}

    # A worker that starts first takes both clusters, and hands one over.
    await eventually(divided, what="each worker owns a cluster")
    await eventually(is_ready, what="both workers are ready")
    owners, numbers = await _owners(upper, "workers"), await workers()
    wanted = [
        f'virtual_node_owned_cluster{{cluster="{node}",worker="{numbers[node]}"}} 1.0' for node in nodes
    ]
    await becomes(owned, wanted, what="the metric follows the owners")
    for number in (0, 1):
        assert '"elsewhere"' in await _read(f"http://{LOOPBACK}:{port + number}/api/state")

    def starts() -> int:
        """Return how often a cluster was mirrored by a process from its start."""
        return parent.log.read_text(encoding="utf-8").count(MIRRORING)

    (first, _), before = _children(parent.pid), starts()
    os.kill(first, signal.SIGKILL)
    await in_log(parent, "worker ended; restarting it")
    assert "signal SIGKILL" in parent.log.read_text(encoding="utf-8")
    begin = time.monotonic()
    await in_log(parent, MIRRORING, times=before + 1)
    await eventually(is_ready, what="both workers are ready again")
    assert time.monotonic() - begin < 60, "the Lease of the killed worker lasts 120 s"
    assert await _owners(upper, "workers") == owners
    assert await owned() == wanted
    await create(upper, namespace, *[pod(f"on-{node}", "sleep 3600", node=node) for node in nodes])
    for node in nodes:
        await ready(upper, namespace, f"on-{node}")
    children = _children(parent.pid)
    await parent.stop(seconds=40)
    assert set((await _owners(upper, "workers")).values()) == {""}
    assert [start_time(pid) for pid in children] == ["", ""]

    # Without their parent workers stop, and release their Leases.
    before = starts()
    await parent.start()
    await in_log(parent, MIRRORING, times=before + 2)
    children = _children(parent.pid)
    await parent.kill()

    async def left() -> set[str]:
        return {start_time(pid) for pid in children} | set((await _owners(upper, "workers")).values())

    await becomes(left, {""})


async def _read(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


def _page_port() -> int:
    """Return a free port of which the next one is free, too."""
    while True:
        (port,) = free_ports(1)
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port + 1))
            return port


def _children(pid: int) -> list[int]:
    """Return the pids of a process's children, the oldest first."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return sorted(map(int, found.split()))
