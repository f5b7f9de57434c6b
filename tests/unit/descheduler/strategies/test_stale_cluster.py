"""Lost clusters: when they count as lost, what moves, and what happens when they heal."""

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
    """Virtual nodes that renew their leases every ten seconds, unless they are told not to."""

    def __init__(self, cluster: Cluster, *all_nodes: str) -> None:
        self.cluster = cluster
        self.silent: set[str] = set()
        for name in all_nodes:
            cluster.put("nodes", node(name))
            self.renew(name)

    def renew(self, name: str) -> None:
        """Renew one lease."""
        lease = {
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"renewTime": timestamps.micro_time(now()), "leaseDurationSeconds": 40},
        }
        self.cluster.put("leases", lease)

    def say(self, name: str, *, ready: bool, reason: str = "") -> None:
        """Set a node's Ready condition."""
        self.cluster.replace("nodes", name, status=node(name, ready=ready, reason=reason)["status"])

    @contextlib.asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Renew inside the block."""

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
    """A pod that runs on node a."""
    whole = pod(phase="Running", refused_at=None, **fields)
    whole["status"]["conditions"].append({"type": "Ready", "status": "True"})
    return whole


def setting(*bodies: dict[str, Any], params: Any = None, **options: Any) -> tuple[Nodes, Process, Any]:
    """Nodes a and b, pods, and a process with the strategy."""
    cluster = Cluster()
    nodes = Nodes(cluster, "a", "b")
    for body in bodies:
        cluster.put("pods", body)
    process = Process(cluster, options=EvictionOptions(**options))
    strategy = process.add(StaleCluster, params or StaleClusterParams())
    return nodes, process, strategy


def taints(nodes: Nodes) -> set[str]:
    """The keys of node a's taints."""
    found = nodes.cluster.find("nodes", "a")
    assert found is not None
    return {taint["key"] for taint in found["spec"]["taints"]}


def is_moved(nodes: Nodes) -> bool:
    """Whether the bare pod is one that was made anew."""
    (found,) = nodes.cluster.all("pods")
    return "nodeName" not in found["spec"]


@looptime
async def test_silent_lease():
    """Silent for 20 s is well, for longer is lost: tainted, and its pods are moved although nobody confirms that."""
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
async def test_not_ready():
    """NotReady for more than 20 s is lost as well, and a shorter time is nothing."""
    nodes, process, _ = setting(running())
    async with nodes.renewing(), process.running():
        nodes.say("a", ready=False)
        await asyncio.sleep(19)
        nodes.say("a", ready=True)
        await asyncio.sleep(60)
        assert process.client.writes == []
        nodes.say("a", ready=False)
        await asyncio.sleep(22)
        assert is_moved(nodes)


@looptime
async def test_healing():
    """The taint and the freeze go once the node has been well for half a minute; what has moved stays."""
    nodes, process, _ = setting(running(owner="rs"))
    async with nodes.renewing(), process.running():
        nodes.say("a", ready=False)
        await asyncio.sleep(25)
        assert not nodes.cluster.all("pods")
        nodes.cluster.put("pods", running(name="new", owner="rs", on="b"))
        nodes.say("a", ready=True)
        await asyncio.sleep(28)
        assert names.TAINT_STALE_CLUSTER in taints(nodes)
        await asyncio.sleep(4)
        assert names.TAINT_STALE_CLUSTER not in taints(nodes)
        assert process.memory.frozen("rs") == {}
        await asyncio.sleep(300)
        assert len(nodes.cluster.created) == 2


@looptime
async def test_flapping():
    """A node that is well for less than the healing time keeps its taint all the while: one taint, no ping-pong."""
    nodes, process, _ = setting(running(owner="rs"))
    async with nodes.renewing(), process.running():
        for _ in range(5):
            nodes.say("a", ready=False)
            await asyncio.sleep(25)
            nodes.say("a", ready=True)
            await asyncio.sleep(20)
            assert names.TAINT_STALE_CLUSTER in taints(nodes)
        assert process.client.writes.count("patch nodes") == 1
        await asyncio.sleep(20)
        assert names.TAINT_STALE_CLUSTER not in taints(nodes)


@looptime
async def test_taint_of_an_earlier_leader():
    """A taint that a former leader left on a node that is well is taken away."""
    nodes, process, _ = setting()
    found = nodes.cluster.find("nodes", "a")
    assert found is not None
    mark = {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    nodes.cluster.replace("nodes", "a", spec={"taints": [*found["spec"]["taints"], mark]})
    async with nodes.renewing(), process.running():
        await asyncio.sleep(35)
    assert taints(nodes) == {"virtual-kubelet.io/provider"}


@looptime
async def test_everyone_silent():
    """When nobody renews it is the upper apiserver that was away: nothing moves, then or afterwards."""
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
async def test_stops_when_it_heals():
    """Pods that wait their turn are not moved any more once the cluster is back."""
    bodies = [running(name=f"p{number}", owner=f"rs{number}") for number in range(10)]
    nodes, process, _ = setting(*bodies, params=StaleClusterParams(pods_per_second=0.1, burst=1))
    async with nodes.renewing(), process.running():
        nodes.say("a", ready=False)
        await asyncio.sleep(45)
        left = len(nodes.cluster.all("pods"))
        assert 5 < left < 9
        nodes.say("a", ready=True)
        await asyncio.sleep(600)
        assert len(nodes.cluster.all("pods")) == left


@looptime
async def test_cordoned_below():
    """A lower cluster that answers but whose nodes take no new pods keeps those that are ready."""
    nodes, process, _ = setting(running(name="well", owner="rs"), pod("ill", owner="rs2", phase="Running"))
    async with nodes.renewing(), process.running():
        nodes.say("a", ready=False, reason="NoReadyLowerNodes")
        await asyncio.sleep(60)
    assert [found["metadata"]["name"] for found in nodes.cluster.all("pods")] == ["well"]


@looptime
async def test_nowhere_to_go():
    """Both clusters lost: pods stay where they are until one of them is back."""
    nodes, process, _ = setting(running())
    async with nodes.renewing(), process.running():
        for name in ("a", "b"):
            nodes.say(name, ready=False)
        await asyncio.sleep(120)
        assert not is_moved(nodes)
        nodes.say("b", ready=True)
        await asyncio.sleep(40)
        assert is_moved(nodes)


@looptime
async def test_budget_gives_way_after_its_time():
    """With a time limit, a disruption budget delays the move of a lost pod and no more."""
    params = StaleClusterParams(disruption_budget_timeout_seconds=100)
    nodes, process, _ = setting(running(owner="rs"), params=params)
    nodes.cluster.budget_denies = True
    async with nodes.renewing(), process.running():
        nodes.say("a", ready=False)
        await asyncio.sleep(110)
        assert nodes.cluster.all("pods")
        await asyncio.sleep(80)
        assert not nodes.cluster.all("pods")


@looptime
async def test_an_apiserver_that_sheds_load_is_no_budget():
    """Whatever the time limit: an eviction that was not even looked at is not made a deletion."""
    params = StaleClusterParams(disruption_budget_timeout_seconds=1)
    nodes, process, _ = setting(running(owner="rs"), params=params)
    nodes.cluster.sheds_load = True
    async with nodes.renewing(), process.running():
        nodes.say("a", ready=False)
        await asyncio.sleep(110)
        assert nodes.cluster.all("pods")
        assert "RescheduleDelayed" not in process.reasons()
        nodes.cluster.sheds_load = False
        await asyncio.sleep(70)
        assert not nodes.cluster.all("pods")


@looptime
async def test_dry_run():
    """A dry run taints nothing and moves nothing."""
    nodes, process, _ = setting(running(), dry_run=True)
    async with nodes.renewing(), process.running():
        nodes.say("a", ready=False)
        await asyncio.sleep(60)
        nodes.say("a", ready=True)
        await asyncio.sleep(60)
    assert process.client.writes == []
    assert process.reasons() == ["WouldReschedule"]
