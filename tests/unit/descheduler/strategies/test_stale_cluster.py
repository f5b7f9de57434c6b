"""Lost clusters: when they are lost, which pods move, and what happens when they recover."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from clusterset.model import names
from tests.unit.descheduler.bodies import pod
from tests.unit.descheduler.lost_clusters import AT_ONCE, is_moved, running, setting, since, taints

looptime = pytest.mark.looptime


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
    first = ""
    async with nodes.renewing(), process.running():
        for _ in range(5):
            nodes.set_ready("a", ready=False)
            await asyncio.sleep(25)
            first = first or since(nodes)
            nodes.set_ready("a", ready=True)
            await asyncio.sleep(20)
            assert names.TAINT_STALE_CLUSTER in taints(nodes)
            assert since(nodes) == first
        await asyncio.sleep(20)
        assert names.TAINT_STALE_CLUSTER not in taints(nodes)


@looptime
async def test_node_with_flapping_lease_keeps_its_taint_until_it_is_healthy_for_30_s():
    nodes, process, _ = setting(running(owner="rs"))
    async with nodes.renewing(), process.running():
        for _ in range(3):
            nodes.silent.add("a")
            await asyncio.sleep(40)
            nodes.silent.remove("a")
            await asyncio.sleep(15)
            assert names.TAINT_STALE_CLUSTER in taints(nodes)
        await asyncio.sleep(12)
        assert names.TAINT_STALE_CLUSTER in taints(nodes)
        await asyncio.sleep(15)
        assert names.TAINT_STALE_CLUSTER not in taints(nodes)


@looptime
async def test_does_not_restore_taint_that_was_removed_by_hand_after_recovery():
    nodes, process, _ = setting(running(owner="rs"))
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(25)
        nodes.set_ready("a", ready=True)
        await asyncio.sleep(5)
        nodes.cluster.replace("nodes", "a", spec={"taints": []})
        await asyncio.sleep(60)
        assert taints(nodes) == set()


@looptime
async def test_removes_taint_of_earlier_leader_from_healthy_node():
    nodes, process, _ = setting()
    found = nodes.cluster.find("nodes", "a")
    assert found is not None
    mark = {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    nodes.cluster.replace("nodes", "a", spec={"taints": [*found["spec"]["taints"], mark]})
    async with nodes.renewing(), process.running():
        await asyncio.sleep(45)
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
    nodes, process, _ = setting(
        *bodies, params=msgspec.structs.replace(AT_ONCE, pods_per_second=0.1, burst=1)
    )
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
    params = msgspec.structs.replace(AT_ONCE, disruption_budget_timeout_seconds=100)
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
    params = msgspec.structs.replace(AT_ONCE, disruption_budget_timeout_seconds=1)
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
