"""Pods that run in a lost cluster: they move only after minutes of silence, and only if another cluster has room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from descheduler.config import EvictionOptions
from descheduler.strategies.base import Params
from descheduler.strategies.drain import Drain
from descheduler.strategies.duplicates import Duplicates, DuplicatesParams
from descheduler.strategies.stale_cluster import StaleClusterParams
from tests.unit.descheduler.bodies import node, pod
from tests.unit.descheduler.lost_clusters import Nodes, leader, running, setting, silence_of
from tests.unit.descheduler.process import Process

pytestmark = pytest.mark.looptime
DEFAULT = StaleClusterParams()
"""Pods move after 20 s of silence, running ones after 300 s."""
MIRRORED = {names.ANNOTATION_LOWER_UID: "below/above"}
PLACED = MIRRORED | {names.ANNOTATION_LOWER_NODE: "n1"}


def sized(name: str, cpu: str, **fields: Any) -> dict[str, Any]:
    """Return a pod of an owner with its own name that runs on node a."""
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
    return running(name=name, owner=name, spec={"containers": containers, **fields.pop("spec", {})}, **fields)


def on_a(nodes: Nodes) -> list[str]:
    """Return the names of the pods on node a."""
    return sorted(
        found["metadata"]["name"]
        for found in nodes.cluster.all("pods")
        if found["spec"].get("nodeName") == "a" and not found["metadata"].get("deletionTimestamp")
    )


@pytest.mark.parametrize(
    ("after", "left"),
    [(22, ["pulls", "runs"]), (295, ["pulls", "runs"]), (305, [])],
)
async def test_pods_without_lower_node_move_at_once_and_others_after_300_s(after: float, left: list[str]):
    bodies = [
        pod("waits", owner="rs1"),  # the lower scheduler found no node
        pod("new", owner="rs2", refused_at=None),  # the upper scheduler has set PodScheduled=True
        pod("pulls", owner="rs3", refused_at=None, annotations=PLACED),
        pod("unseen", owner="rs5", refused_at=None, annotations=MIRRORED),  # by the lower scheduler
        running(name="runs", owner="rs4"),
    ]
    nodes, process, _ = setting(*bodies, params=DEFAULT)
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(after)
        assert on_a(nodes) == left


@pytest.mark.parametrize("healthy", [0.001, 5])
async def test_running_pods_stay_if_cluster_answers_again_within_300_s(healthy):
    """As in an upgrade of a control plane. A later silence has its own 300 s."""
    nodes, process, _ = setting(running(), params=DEFAULT)
    async with nodes.renewing(), process.running():
        for _ in range(3):
            nodes.set_ready("a", ready=False)
            await asyncio.sleep(290)
            nodes.set_ready("a", ready=True)
            await asyncio.sleep(healthy)
        assert on_a(nodes) == ["p"]
        nodes.silent.add("a")
        await asyncio.sleep(290)
        assert on_a(nodes) == ["p"]
        await asyncio.sleep(25)
        assert on_a(nodes) == []


async def test_silence_is_on_the_node_until_it_is_healthy():
    nodes, process, _ = setting(running(), params=DEFAULT)
    async with nodes.renewing(), process.running():
        await asyncio.sleep(5)
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(19)
        assert silence_of(nodes) is None
        await asyncio.sleep(3)
        found = silence_of(nodes)
        assert found is not None
        assert str(found.since) == "2026-01-01 00:00:05+00:00"
        assert str(found.running_pods_move_at) == "2026-01-01 00:05:05+00:00"
        nodes.set_ready("a", ready=True)
        await asyncio.sleep(1)
        assert silence_of(nodes) is None
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(25)
        again = silence_of(nodes)
        assert again is not None
        assert str(again.since) == "2026-01-01 00:00:28+00:00"


async def test_pod_without_room_elsewhere_stays_with_event_until_there_is_room():
    """It is checked again although no node changes."""
    nodes, process, _ = setting(
        sized("small", "1"), sized("large", "7"), sized("full", "4", on="b"), params=DEFAULT
    )
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(310)
        assert on_a(nodes) == ["large"]
        reason = "Stays: no other ready virtual node has room for it: b lacks cpu"
        assert ("Normal", "NotRescheduled", reason) in process.events
        nodes.cluster.remove("pods", "default/full")
        await asyncio.sleep(60)
        assert on_a(nodes) == []


async def test_pod_without_room_does_not_use_up_the_rate():
    crowd = [sized(f"large{number}", "11", spec={"priority": 1}) for number in range(30)]
    params = StaleClusterParams(pods_per_second=0.1, burst=1)
    nodes, process, _ = setting(*crowd, sized("small", "1"), params=params)
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(305)
        assert "small" not in on_a(nodes)
        assert len(on_a(nodes)) == 30


async def test_most_important_pods_get_the_room():
    bodies = [sized(f"p{number}", "4", spec={"priority": number % 3}) for number in range(6)]
    nodes, process, _ = setting(*bodies, params=DEFAULT)
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(310)
        assert on_a(nodes) == ["p0", "p1", "p3", "p4"]


async def test_bare_pods_need_room_too():
    nodes, process, _ = setting(*(running(name=f"p{number}") for number in range(12)), params=DEFAULT)
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(400)
        assert len(on_a(nodes)) == 2


async def test_room_is_only_where_volumes_are_reached():
    claim = {
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"},
    }
    terms = [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "c"]}]}
    ]
    volume = {
        "metadata": {"name": "pv"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    nodes, process, _ = setting(sized("db", "2", spec={"volumes": volumes}), params=DEFAULT)
    nodes.cluster.put("nodes", node("c", cpu="1"))
    nodes.renew("c")
    nodes.cluster.put("persistentvolumeclaims", claim)
    nodes.cluster.put("persistentvolumes", volume)
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(310)
        assert on_a(nodes) == ["db"]
        nodes.cluster.replace("nodes", "c", status=node("c", cpu="2")["status"])
        await asyncio.sleep(30)
        assert on_a(nodes) == []


async def test_dry_run_reports_only_as_many_moves_as_have_room():
    bodies = [sized(f"p{number}", "4") for number in range(4)]
    nodes, process, _ = setting(*bodies, params=DEFAULT, dry_run=True)
    async with nodes.renewing(), process.running():
        nodes.set_ready("a", ready=False)
        await asyncio.sleep(310)
    assert sorted(process.reasons()) == [
        "NotRescheduled",
        "NotRescheduled",
        "WouldReschedule",
        "WouldReschedule",
    ]
    assert process.client.writes == []


class TestChangeOfTheLeader:
    """The silence goes on, although the next leader has seen only a part of it."""

    @pytest.mark.parametrize("handover", [30, 150, 290])
    async def test_next_leader_continues_the_300_s(self, handover: float):
        nodes, first, _ = setting(running(), params=DEFAULT)
        second, _ = leader(nodes.cluster, DEFAULT)
        async with nodes.renewing():
            async with first.running():
                nodes.set_ready("a", ready=False)
                await asyncio.sleep(handover)
            async with second.running():
                # It must see 20 s of silence itself.
                await asyncio.sleep(max(295.0, handover + 19) - handover)
                assert on_a(nodes) == ["p"]
                await asyncio.sleep(12)
                assert on_a(nodes) == []

    async def test_silent_lease_is_continued_too(self):
        nodes, first, _ = setting(running(), params=DEFAULT)
        second, _ = leader(nodes.cluster, DEFAULT)
        async with nodes.renewing():
            nodes.silent.add("a")
            async with first.running():
                await asyncio.sleep(200)
            async with second.running():
                await asyncio.sleep(95)
                assert on_a(nodes) == ["p"]
                await asyncio.sleep(15)
                assert on_a(nodes) == []

    async def test_recovery_without_a_leader_ends_the_silence(self):
        nodes, first, _ = setting(running(), params=DEFAULT)
        second, _ = leader(nodes.cluster, DEFAULT)
        async with nodes.renewing():
            async with first.running():
                nodes.set_ready("a", ready=False)
                await asyncio.sleep(100)
            nodes.set_ready("a", ready=True)
            await asyncio.sleep(50)
            nodes.set_ready("a", ready=False)
            await asyncio.sleep(100)
            async with second.running():
                await asyncio.sleep(190)
                assert on_a(nodes) == ["p"]
                await asyncio.sleep(20)
                assert on_a(nodes) == []

    async def test_next_leader_does_not_move_pods_off_a_recovered_node(self):
        nodes, first, _ = setting(running(), pod("waits", owner="rs", annotations=MIRRORED), params=DEFAULT)
        second, _ = leader(nodes.cluster, DEFAULT)
        async with nodes.renewing():
            async with first.running():
                nodes.set_ready("a", ready=False)
                await asyncio.sleep(25)
            nodes.cluster.put("pods", pod("later", owner="rs"))
            nodes.set_ready("a", ready=True)
            async with second.running():
                await asyncio.sleep(400)
                assert on_a(nodes) == ["later", "p"]
                assert silence_of(nodes) is None

    async def test_another_setting_counts_from_the_same_beginning(self):
        nodes, first, _ = setting(running(), params=DEFAULT)
        second, _ = leader(nodes.cluster, StaleClusterParams(move_running_after_seconds=900))
        async with nodes.renewing():
            async with first.running():
                nodes.set_ready("a", ready=False)
                await asyncio.sleep(100)
            async with second.running():
                await asyncio.sleep(30)
                found = silence_of(nodes)
                assert found is not None
                assert str(found.running_pods_move_at) == "2026-01-01 00:15:00+00:00"
                await asyncio.sleep(760)
                assert on_a(nodes) == ["p"]
                await asyncio.sleep(20)
                assert on_a(nodes) == []


class TestUpperOutage:
    """While no Lease is renewed, no virtual node can report health."""

    @pytest.mark.parametrize("is_ready", [True, False])
    async def test_silence_begins_after_the_outage(self, is_ready):
        nodes, process, _ = setting(running(), params=DEFAULT)
        async with nodes.renewing(), process.running():
            await asyncio.sleep(15)
            nodes.set_ready("a", ready=is_ready)
            nodes.silent |= {"a", "b"}
            await asyncio.sleep(400)
            assert process.client.writes == []
            nodes.silent.remove("b")
            await asyncio.sleep(290)
            assert on_a(nodes) == ["p"]
            await asyncio.sleep(30)
            assert on_a(nodes) == []

    async def test_silence_before_the_outage_goes_on_after_another_20_s(self):
        nodes, process, _ = setting(running(), pod("waits", owner="rs"), params=DEFAULT)
        async with nodes.renewing(), process.running():
            nodes.silent.add("a")
            await asyncio.sleep(285)
            nodes.silent.add("b")
            await asyncio.sleep(100)
            assert on_a(nodes) == ["p"]
            nodes.silent.remove("b")
            await asyncio.sleep(15)
            nodes.cluster.put("pods", pod("later", owner="rs"))
            await asyncio.sleep(4)
            assert on_a(nodes) == ["later", "p"]
            await asyncio.sleep(25)
            assert on_a(nodes) == []


@pytest.mark.parametrize(("kind", "params"), [(Drain, Params()), (Duplicates, DuplicatesParams())])
async def test_other_strategies_do_not_move_pods_that_may_run_in_a_silent_cluster(kind: Any, params: Any):
    """Kubernetes marks pods of a NotReady node as not Ready, whether they run or not."""
    bodies = [pod(f"p{number}", owner="rs", phase="Running", refused_at=None) for number in range(4)]
    nodes, _, _ = setting(*bodies)
    body = nodes.cluster.get("nodes", "a")
    body["metadata"]["annotations"] = {names.ANNOTATION_DRAIN: ""}
    nodes.cluster.replace(
        "nodes", "a", metadata=body["metadata"], spec={**body["spec"], "unschedulable": True}
    )
    nodes.cluster.put("nodes", node("c"))
    nodes.set_ready("a", ready=False)
    process = Process(nodes.cluster, options=EvictionOptions(), interval=10)
    process.add(kind, params)
    async with process.running():
        await asyncio.sleep(60)
        assert on_a(nodes) == ["p0", "p1", "p2", "p3"]
        nodes.set_ready("a", ready=False, reason="NoReadyLowerNodes")
        await asyncio.sleep(60)
        assert len(on_a(nodes)) < 4
