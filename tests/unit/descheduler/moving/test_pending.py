"""The gauge of pods that are to be moved and stay: who is in it, why, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import prometheus_client
import pytest

from controller_runtime.errors import Forbidden
from descheduler.config.options import EvictionOptions
from descheduler.strategies.duplicates import Duplicates, DuplicatesParams
from descheduler.strategies.stale_cluster import StaleCluster, StaleClusterParams
from tests.unit.descheduler.bodies import node, now, pod
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.refusing_clusters import THRESHOLD, cluster_with, process_on

pytestmark = pytest.mark.looptime
REFUSED = THRESHOLD + 5


def waiting() -> dict[tuple[str, str], float]:
    """Strategy and cause → pods, as a scrape has it; nought left out."""
    return {
        (sample.labels["strategy"], sample.labels["cause"]): sample.value
        for family in prometheus_client.REGISTRY.collect()
        if family.name == "virtual_node_descheduler_waiting_pods"
        for sample in family.samples
        if sample.value
    }


async def test_a_quiet_standstill_is_seen():
    """Without another node nothing happens for hours, and all the while it can be seen that pods wait for one."""
    cluster = cluster_with(pod("p0"), pod("p1"), nodes=("a",))
    async with process_on(cluster).running():
        await asyncio.sleep(THRESHOLD - 1)
        assert waiting() == {}
        await asyncio.sleep(6)
        assert waiting() == {("Unschedulable", "no node"): 2}
        await asyncio.sleep(7200)
        assert waiting() == {("Unschedulable", "no node"): 2}
        cluster.put("nodes", node("b"))
        await asyncio.sleep(5)
        assert waiting() == {}


@pytest.mark.parametrize("how", ["starts", "ends", "goes"])
async def test_who_need_not_move_waits_no_longer(how):
    """Nobody asks again for a pod that has started below, that its owner deletes, or that is gone."""
    cluster = cluster_with(pod(), nodes=("a",))
    async with process_on(cluster).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "no node"): 1}
        if how == "starts":
            cluster.replace("pods", "default/p", status=pod(refused_at=None)["status"])
        elif how == "ends":
            cluster.dead_nodes.add("a")
            cluster.delete("pods", "default/p", grace=3600)
        else:
            cluster.remove("pods", "default/p")
        await asyncio.sleep(1)
        assert waiting() == {}


async def test_a_pod_that_is_refused_anew_has_its_time():
    """Its lower cluster had taken it for a moment: it is not to be moved until that has tried for as long again."""
    cluster = cluster_with(pod(), nodes=("a",))
    async with process_on(cluster).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "no node"): 1}
        cluster.replace("pods", "default/p", status=pod(refused_at=now())["status"])
        await asyncio.sleep(1)
        assert waiting() == {}
        await asyncio.sleep(THRESHOLD)
        assert waiting() == {("Unschedulable", "no node"): 1}


async def test_a_pod_that_starts_while_it_is_asked_for_does_not_wait():
    """The refusal comes when the pod is well already, and would be the last word about it."""
    cluster = cluster_with(pod(owner="rs"))
    cluster.budget_denies = True
    process = process_on(cluster)

    async def start(what: str) -> None:
        if what == "create eviction":
            cluster.replace("pods", "default/p", status=pod(refused_at=None)["status"])
            await asyncio.sleep(0.1)

    process.client.after = start
    async with process.running():
        await asyncio.sleep(REFUSED)
        assert process.client.writes[-1] == "create eviction"
        assert waiting() == {}


async def test_a_pod_waits_for_one_cause_at_a_time():
    """What keeps it now is what counts: first a budget, then an apiserver that has too much to do."""
    cluster = cluster_with(pod(owner="rs"))
    cluster.budget_denies = True
    async with process_on(cluster).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "disruption budget"): 1}
        cluster.sheds_load = True
        await asyncio.sleep(61)
        assert waiting() == {("Unschedulable", "request failed"): 1}


async def test_a_right_that_is_missing_is_seen():
    """A refused request makes no event and moves no pod."""
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster)

    async def refuse(what: str) -> None:
        if what == "create eviction":
            raise Forbidden("pods/eviction is forbidden", code=403)

    process.client.before = refuse
    async with process.running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "request failed"): 1}


async def test_what_is_held_back_on_purpose_is_told_apart():
    """A limit holds one pod back; another may not be moved at all."""
    cluster = cluster_with(
        *(pod(f"p{number}", owner=f"rs{number}") for number in range(2)),
        pod("d", owner="ds", kind="DaemonSet"),
    )
    async with process_on(cluster, max_per_node=1, pass_seconds=100).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "limit"): 1, ("Unschedulable", "not evictable"): 1}


async def test_in_a_dry_run_nobody_waits():
    """What would go is told by events; it is not held up by anything."""
    async with process_on(cluster_with(pod()), dry_run=True).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {}


def lost_cluster(*bodies: dict[str, Any]) -> tuple[Any, Process]:
    """One virtual node, and a process that moves pods off it when it is lost."""
    cluster = cluster_with(*bodies, nodes=("a",))
    process = Process(cluster, options=EvictionOptions())
    process.add(StaleCluster, StaleClusterParams())
    return cluster, process


async def test_pods_of_a_lost_cluster_wait_until_it_heals():
    """There is nowhere to go; when the cluster answers again they need not go any more."""
    cluster, process = lost_cluster(pod("p0", phase="Running", refused_at=None))
    async with process.running():
        cluster.replace("nodes", "a", status=node("a", ready=False)["status"])
        await asyncio.sleep(25)
        assert waiting() == {("StaleCluster", "no node"): 1}
        cluster.replace("nodes", "a", status=node("a")["status"])
        await asyncio.sleep(1)
        assert waiting() == {}
        cluster.replace("nodes", "a", status=node("a", ready=False)["status"])
        await asyncio.sleep(25)
        assert waiting() == {("StaleCluster", "no node"): 1}


async def test_a_pod_that_runs_on_cordoned_nodes_does_not_wait():
    """The lower cluster answers and takes no new pods: what starts after all is well where it is."""
    cluster, process = lost_cluster(pod("p0"))
    async with process.running():
        cluster.replace("nodes", "a", status=node("a", ready=False, reason="NoReadyLowerNodes")["status"])
        await asyncio.sleep(25)
        assert waiting() == {("StaleCluster", "no node"): 1}
        status = pod(refused_at=None, phase="Running")["status"]
        status["conditions"].append({"type": "Ready", "status": "True"})
        cluster.replace("pods", "default/p0", status=status)
        await asyncio.sleep(1)
        assert waiting() == {}


def crowd(count: int) -> list[dict[str, Any]]:
    """Running pods of one owner on one node."""
    return [pod(f"p{n}", owner="rs", phase="Running", refused_at=None) for n in range(count)]


async def test_what_a_pass_does_not_ask_for_waits_no_longer():
    """Between passes its pods wait; the next one finds the owner's pods spread well enough."""
    cluster = cluster_with(*crowd(2))
    cluster.budget_denies = True
    process = Process(cluster, interval=100)
    process.add(Duplicates, DuplicatesParams())
    async with process.running():
        await asyncio.sleep(50)
        assert waiting() == {("RemoveDuplicates", "disruption budget"): 1}
        await asyncio.sleep(100)
        assert waiting() == {("RemoveDuplicates", "disruption budget"): 1}
        cluster.put("pods", pod("p2", owner="rs", on="b", phase="Running", refused_at=None))
        cluster.put("pods", pod("p3", owner="rs", on="b", phase="Running", refused_at=None))
        await asyncio.sleep(100)
        assert waiting() == {}


async def test_after_the_only_pass_nobody_waits():
    """Nobody will ask again."""
    cluster = cluster_with(*crowd(2))
    cluster.budget_denies = True
    process = Process(cluster)
    process.add(Duplicates, DuplicatesParams())
    async with process.running():
        await asyncio.sleep(5)
        assert "create eviction" in process.client.writes
        assert waiting() == {}
