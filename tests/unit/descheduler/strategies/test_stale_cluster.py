"""Lost clusters: when they are lost, which pods move, and what happens when they recover."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller_runtime.api import names, timestamps
from descheduler.config.options import EvictionOptions
from descheduler.strategies.stale_cluster import StaleCluster, StaleClusterParams
from tests.unit.descheduler.bodies import node, now, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

looptime = pytest.mark.looptime


class Nodes:
    """Virtual nodes that renew their Leases every ten seconds, except silent ones."""

    def __init__(self, cluster: Cluster, *all_nodes: str) -> None:
        self.cluster = cluster
        self.silent: set[str] = set()
        for name in all_nodes:
            cluster.put("nodes", node(name))
            self.renew(name)

    def renew(self, name: str) -> None:
        lease = {
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"renewTime": timestamps.micro_time(now()), "leaseDurationSeconds": 40},
        }
        self.cluster.put("leases", lease)

    def set_ready(self, name: str, *, ready: bool, reason: str = "") -> None:
        self.cluster.replace("nodes", name, status=node(name, ready=ready, reason=reason)["status"])

    @contextlib.asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Renew the Leases in the block."""

        async def run() -> None:
            while True:
                await asyncio.sleep(10)
                for found in self.cluster.all("nodes"):
                    name = found["metadata"]["name"]
                    if name not in self.silent:
                        self.renew(name)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def running(**fields: Any) -> dict[str, Any]:
    """Return a pod that runs on node a."""
    body = pod(phase="Running", refused_at=None, **fields)
    body["status"]["conditions"].append({"type": "Ready", "status": "True"})
    return body


def setting(*bodies: dict[str, Any], params: Any = None, **options: Any) -> tuple[Nodes, Process, Any]:
    """Return nodes a and b, a process, and its StaleCluster strategy."""
    cluster = Cluster()
    nodes = Nodes(cluster, "a", "b")
    for body in bodies:
        cluster.put("pods", body)
    process = Process(cluster, options=EvictionOptions(**options))
    strategy = process.add(StaleCluster, params or StaleClusterParams())
    return nodes, process, strategy


def taints(nodes: Nodes) -> set[str]:
    """Return the keys of node a's taints."""
    found = nodes.cluster.find("nodes", "a")
    assert found is not None
    return {taint["key"] for taint in found["spec"]["taints"]}


def is_moved(nodes: Nodes) -> bool:
    """Report whether the bare pod was re-created."""
    (found,) = nodes.cluster.all("pods")
    return "nodeName" not in found["spec"]


@looptime
async def test_lease_silent_for_over_20_s_taints_node_and_moves_pods():
    """Although no kubelet confirms the end of the pods."""
    nodes, process, _ = setting(running())
    nodes.cluster.dead_nodes.add("a")
    async with nodes.renewing(), process.running():
        await asyncio.sleep(20.5)
        nodes.silent.add("a")
        await asyncio.sleep(19)
        assert process.client.writes == []
        await asyncio.sleep(2)
        assert taints(nodes) == {"virtual-kubelet.io/provider", names.TAINT_STALE_CLUSTER}
        assert is_moved(nodes)


@looptime
async def test_not_ready_for_over_20_s_moves_pods():
    nodes, process, _ = setting(running())
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(19)
        nodes.set_ready("a", ready=True)
        await asyncio.sleep(60)
        assert process.client.writes == []
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(22)
        assert is_moved(nodes)


@looptime
async def test_recovered_node_is_used_again_after_30_s_without_moving_pods_back():
    nodes, process, _ = setting(running(owner="rs"))
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(25)
        assert not nodes.cluster.all("pods")
        nodes.cluster.put("pods", running(name="new", owner="rs", on="b"))
        nodes.set_ready("a", ready=True)
        await asyncio.sleep(28)
        assert names.TAINT_STALE_CLUSTER in taints(nodes)
        await asyncio.sleep(4)
        assert names.TAINT_STALE_CLUSTER not in taints(nodes)
        assert process.mover.memory.frozen("rs") == {}
        await asyncio.sleep(300)
        assert len(nodes.cluster.created) == 2


@looptime
async def test_flapping_node_keeps_its_taint():
    nodes, process, _ = setting(running(owner="rs"))
    async with nodes.renewing(), process.running():
        for _ in range(5):
            nodes.set_ready("a", ready=False)
            await asyncio.sleep(25)
            nodes.set_ready("a", ready=True)
            await asyncio.sleep(20)
            assert names.TAINT_STALE_CLUSTER in taints(nodes)
        assert process.client.writes.count("patch nodes") == 1
        await asyncio.sleep(20)
        assert names.TAINT_STALE_CLUSTER not in taints(nodes)


@looptime
async def test_removes_taint_of_earlier_leader_from_healthy_node():
    nodes, process, _ = setting()
    found = nodes.cluster.find("nodes", "a")
    assert found is not None
    mark = {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    nodes.cluster.replace("nodes", "a", spec={"taints": [*found["spec"]["taints"], mark]})
    async with nodes.renewing(), process.running():
        await asyncio.sleep(35)
    assert taints(nodes) == {"virtual-kubelet.io/provider"}


@looptime
async def test_moves_nothing_if_all_leases_are_silent():
    """Then the upper API server was unavailable."""
    nodes, process, _ = setting(running())
    async with nodes.renewing(), process.running():
        await asyncio.sleep(15)
        nodes.silent |= {"a", "b"}
        await asyncio.sleep(300)
        nodes.silent.clear()
        nodes.renew("b")
        await asyncio.sleep(8)
        nodes.renew("a")
        await asyncio.sleep(60)
    assert process.client.writes == []


@looptime
async def test_stops_moving_pods_when_cluster_recovers():
    bodies = [running(name=f"p{number}", owner=f"rs{number}") for number in range(10)]
    nodes, process, _ = setting(*bodies, params=StaleClusterParams(pods_per_second=0.1, burst=1))
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(45)
        left = len(nodes.cluster.all("pods"))
        assert 5 < left < 9
        nodes.set_ready("a", ready=True)
        await asyncio.sleep(600)
        assert len(nodes.cluster.all("pods")) == left


@looptime
async def test_ready_pods_stay_if_lower_nodes_are_cordoned():
    nodes, process, _ = setting(running(name="well", owner="rs"), pod("ill", owner="rs2", phase="Running"))
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False, reason="NoReadyLowerNodes")
        await asyncio.sleep(60)
    assert [found["metadata"]["name"] for found in nodes.cluster.all("pods")] == ["well"]


@looptime
async def test_pods_stay_while_all_clusters_are_lost():
    nodes, process, _ = setting(running())
    async with nodes.renewing(), process.running():
        for name in ("a", "b"):
            nodes.set_ready(name, ready=False)
        await asyncio.sleep(120)
        assert not is_moved(nodes)
        nodes.set_ready("b", ready=True)
        await asyncio.sleep(40)
        assert is_moved(nodes)


@looptime
async def test_deletes_pod_when_budget_timeout_is_over():
    params = StaleClusterParams(disruption_budget_timeout_seconds=100)
    nodes, process, _ = setting(running(owner="rs"), params=params)
    nodes.cluster.budget_denies = True
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(110)
        assert nodes.cluster.all("pods")
        await asyncio.sleep(80)
        assert not nodes.cluster.all("pods")


@looptime
async def test_overloaded_apiserver_does_not_count_as_budget():
    """An eviction that was not evaluated must not become a deletion."""
    params = StaleClusterParams(disruption_budget_timeout_seconds=1)
    nodes, process, _ = setting(running(owner="rs"), params=params)
    nodes.cluster.sheds_load = True
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(110)
        assert nodes.cluster.all("pods")
        assert "RescheduleDelayed" not in process.reasons()
        nodes.cluster.sheds_load = False
        await asyncio.sleep(70)
        assert not nodes.cluster.all("pods")


@looptime
async def test_dry_run_taints_and_moves_nothing():
    nodes, process, _ = setting(running(), dry_run=True)
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(60)
        nodes.set_ready("a", ready=True)
        await asyncio.sleep(60)
    assert process.client.writes == []
    assert process.reasons() == ["WouldReschedule"]
