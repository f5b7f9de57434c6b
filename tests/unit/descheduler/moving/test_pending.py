"""The gauge of pods that wait to be moved: which pods, causes and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import prometheus_client
import pytest

from controller_runtime.errors import Forbidden
from descheduler.config import EvictionOptions
from descheduler.strategies.duplicates import Duplicates, DuplicatesParams
from descheduler.strategies.stale_cluster import StaleCluster, StaleClusterParams
from tests.unit.descheduler.bodies import node, now, pod
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.refusing_clusters import THRESHOLD, cluster_with, process_on

pytestmark = pytest.mark.looptime
REFUSED = THRESHOLD + 5


def waiting() -> dict[tuple[str, str], float]:
    """Return the gauge's values other than 0 by strategy and cause."""
    return {
        (sample.labels["strategy"], sample.labels["cause"]): sample.value
        for family in prometheus_client.REGISTRY.collect()
        if family.name == "virtual_node_descheduler_waiting_pods"
        for sample in family.samples
        if sample.value
    }


async def test_pods_wait_in_gauge_while_no_other_node_is_ready():
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
async def test_started_deleted_and_removed_pods_leave_the_gauge(how):
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


async def test_pod_refused_again_waits_for_whole_threshold():
    cluster = cluster_with(pod(), nodes=("a",))
    async with process_on(cluster).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "no node"): 1}
        cluster.replace("pods", "default/p", status=pod(refused_at=now())["status"])
        await asyncio.sleep(1)
        assert waiting() == {}
        await asyncio.sleep(THRESHOLD)
        assert waiting() == {("Unschedulable", "no node"): 1}


async def test_pod_that_starts_during_its_eviction_is_not_added():
    """The refusal of the eviction arrives after the pod started, and no later event would remove the pod."""
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


async def test_gauge_has_only_the_latest_cause_of_a_pod():
    cluster = cluster_with(pod(owner="rs"))
    cluster.budget_denies = True
    async with process_on(cluster).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "disruption budget"): 1}
        cluster.sheds_load = True
        await asyncio.sleep(61)
        assert waiting() == {("Unschedulable", "request failed"): 1}


async def test_forbidden_eviction_is_shown_as_failed_request():
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster)

    async def refuse(what: str) -> None:
        if what == "create eviction":
            raise Forbidden("pods/eviction is forbidden", code=403)

    process.client.before = refuse
    async with process.running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "request failed"): 1}


async def test_limit_and_not_evictable_are_separate_causes():
    cluster = cluster_with(
        *(pod(f"p{number}", owner=f"rs{number}") for number in range(2)),
        pod("d", owner="ds", kind="DaemonSet"),
    )
    async with process_on(cluster, max_per_node=1, pass_seconds=100).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {("Unschedulable", "limit"): 1, ("Unschedulable", "not evictable"): 1}


async def test_dry_run_adds_no_pods():
    async with process_on(cluster_with(pod()), dry_run=True).running():
        await asyncio.sleep(REFUSED)
        assert waiting() == {}


def lost_cluster(*bodies: dict[str, Any]) -> tuple[Any, Process]:
    """Return a cluster with one virtual node, and a process with StaleCluster."""
    cluster = cluster_with(*bodies, nodes=("a",))
    process = Process(cluster, options=EvictionOptions())
    process.add(StaleCluster, StaleClusterParams(move_running_after_seconds=20))
    return cluster, process


async def test_pods_of_lost_cluster_wait_until_it_recovers():
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


async def test_ready_pod_of_cordoned_cluster_does_not_wait():
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
    """Return running pods of one owner on one node."""
    return [pod(f"p{n}", owner="rs", phase="Running", refused_at=None) for n in range(count)]


async def test_pass_removes_pods_that_it_does_not_request():
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


async def test_only_pass_leaves_no_pods_in_gauge():
    cluster = cluster_with(*crowd(2))
    cluster.budget_denies = True
    process = Process(cluster)
    process.add(Duplicates, DuplicatesParams())
    async with process.running():
        await asyncio.sleep(5)
        assert "create eviction" in process.client.writes
        assert waiting() == {}
