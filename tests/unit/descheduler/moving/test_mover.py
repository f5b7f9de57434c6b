"""The rules about moving, on a fake cluster in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from descheduler.config.move_limits import Limits
from tests.unit.descheduler.bodies import node, now, pod
from tests.unit.descheduler.refusing_clusters import (
    THRESHOLD,
    cluster_with,
    controller,
    frozen,
    names_of,
    process_on,
)

pytestmark = pytest.mark.looptime


async def test_owned_pod_is_evicted_after_the_memory_is_written():
    """The webhook can know what the next pod is to avoid before there is a next pod."""
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
    assert process.client.writes[-1] == "create eviction"
    assert frozen(cluster) == {"default.rs": {"namespace": "default", "nodes": {"a": "2026-01-01T00:00:10Z"}}}
    assert names_of(cluster) == []
    assert process.reasons() == ["Rescheduled"]


async def test_memory_expires():
    """After the freeze period nothing is left of it in the API."""
    cluster = cluster_with(pod(owner="rs"))
    async with process_on(cluster).running():
        await asyncio.sleep(THRESHOLD + 330)
    assert frozen(cluster) == {}


async def test_memory_survives_a_restart():
    """A new process knows the rounds that an earlier one has counted: its first move waits for the back-off."""
    cluster = cluster_with(pod(owner="rs"))
    async with process_on(cluster).running():
        await asyncio.sleep(THRESHOLD + 5)
    cluster.put("pods", pod("p1", owner="rs", refused_at=now()))
    second = process_on(cluster)
    async with second.running():
        await asyncio.sleep(50)
        assert names_of(cluster) == ["p1"]
        await asyncio.sleep(20)
    assert names_of(cluster) == []


async def test_pods_of_one_owner_are_one_round():
    """Three pods of one bad placement move together and count once."""
    cluster = cluster_with(*(pod(f"p{number}", owner="rs") for number in range(3)))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
    assert names_of(cluster) == []
    history = cluster.find("configmaps", "kube-system/virtual-node-descheduler")
    assert history is not None
    assert json.loads(history["data"]["default.rs"])["rounds"] == 1


async def test_back_off_and_giving_up():
    """An owner that finds no good place is moved with doubling pauses, five times, and then left with an event."""
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster, limits=Limits(backoff=60, rounds=5, window=7200))
    evicted: list[float] = []
    follow = controller(cluster, on=lambda made: "ab"[made % 2])

    async def after(what: str) -> None:
        if what == "create eviction":
            evicted.append(asyncio.get_running_loop().time())
        await follow(what)

    process.client.after = after
    async with process.running():
        await asyncio.sleep(3600)
        pauses = [later - earlier for earlier, later in itertools.pairwise(evicted)]
        assert [round(pause, -1) for pause in pauses] == [60, 120, 240, 480]
        assert process.reasons().count("RescheduleGivenUp") == 1
        assert names_of(cluster) != []
        await asyncio.sleep(7200)
    assert len(evicted) > 5


async def test_nowhere_to_go():
    """Without another ready virtual node a pod stays, with an event, and moves once there is one."""
    cluster = cluster_with(pod(), nodes=("a",))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(600)
        assert process.reasons() == ["NotRescheduled"]
        assert process.client.writes == []
        cluster.put("nodes", node("b"))
        await asyncio.sleep(5)
    assert process.reasons() == ["NotRescheduled", "Rescheduled"]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"kubernetes.io/hostname": "a"}},
        {"tolerations": []},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
                        ]
                    }
                }
            }
        },
    ],
    ids=["selector", "taint", "affinity"],
)
async def test_alternatives_must_admit_the_pod(spec):
    """A node that the pod itself rules out is no place to go: nothing is deleted for nothing."""
    cluster = cluster_with(pod(spec=spec))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(60)
    assert process.client.writes == []


async def test_avoided_nodes_are_alternatives():
    """A pod that the webhook keeps off a node, and that is stuck on the other one, may go back: the freeze gives way."""
    away = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [away]}}
    body = pod(
        owner="rs",
        on="b",
        spec={"affinity": {"nodeAffinity": required}},
        annotations={"unschedulable-node": "a"},
    )
    cluster = cluster_with(body)
    async with process_on(cluster).running():
        await asyncio.sleep(THRESHOLD + 5)
    assert names_of(cluster) == []
    assert list(frozen(cluster)["default.rs"]["nodes"]) == ["b"]


async def test_bare_pod_ping_pong_gives_way():
    """Refused on both nodes, a bare pod avoids only the last one: it is never left without any."""
    cluster = cluster_with(pod())
    process = process_on(cluster)

    async def schedule(what: str) -> None:
        """Bind to what the affinity allows, and refuse there."""
        for found in cluster.all("pods"):
            if not found["spec"].get("nodeName"):
                required = found["spec"]["affinity"]["nodeAffinity"]
                (term,) = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
                (expression,) = term["matchExpressions"]
                (place,) = {"a", "b"} - set(expression["values"])
                placed = pod(on=place, refused_at=now())
                fields = {"spec": {**found["spec"], "nodeName": place}, "status": placed["status"]}
                cluster.replace("pods", "default/p", **fields)

    process.client.after = schedule
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
        assert cluster.all("pods")[0]["spec"]["nodeName"] == "b"
        await asyncio.sleep(90)
    (found,) = cluster.all("pods")
    assert found["spec"]["nodeName"] == "a"
    assert found["metadata"]["annotations"]["sigs.k8s.io/deschedule-count"] == "2"


async def test_bare_pod_may_return_after_the_freeze():
    """A re-created pod that fits nowhere else is made anew without its avoidance once that has expired."""
    cluster = cluster_with(pod())
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
        waiting = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
        cluster.replace("pods", "default/p", status=waiting)
        await asyncio.sleep(280)
        assert "affinity" in cluster.all("pods")[0]["spec"]
        await asyncio.sleep(20)
    (found,) = cluster.all("pods")
    assert "affinity" not in found["spec"]
    assert found["metadata"]["annotations"]["sigs.k8s.io/deschedule-count"] == "1"
    assert "virtual-node.io/unschedulable-nodes" not in found["metadata"]["annotations"]


async def test_owned_pod_may_return_after_the_freeze():
    """A waiting pod that the webhook made avoid a node is replaced when the freeze is over, and not before."""
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
        successor = pod("p1", owner="rs", on="", annotations={"unschedulable-node": "a"})
        cluster.put("pods", successor)
        await asyncio.sleep(280)
        assert names_of(cluster) == ["p1"]
        await asyncio.sleep(30)
    assert names_of(cluster) == []


async def test_disruption_budget_is_asked_again():
    """A refused eviction changes nothing and is tried again, with an event, until the budget allows it."""
    cluster = cluster_with(pod(owner="rs"))
    cluster.budget_denies = True
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(60)
        assert names_of(cluster) == ["p"]
        assert process.reasons() == ["RescheduleDelayed"]
        cluster.budget_denies = False
        await asyncio.sleep(61)
    assert names_of(cluster) == []


async def test_dry_run():
    """A dry run tells once per pod and writes nothing."""
    cluster = cluster_with(pod("bare"), pod("owned", owner="rs"))
    process = process_on(cluster, dry_run=True)
    async with process.running():
        await asyncio.sleep(600)
    assert process.client.writes == []
    assert process.reasons() == ["WouldReschedule"] * 2


async def test_limit_per_node():
    """One pod per node and pass: the others follow, one in each later pass."""
    cluster = cluster_with(*(pod(f"p{number}", owner=f"rs{number}") for number in range(3)))
    process = process_on(cluster, max_per_node=1, pass_seconds=100)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
        assert len(names_of(cluster)) == 2
        await asyncio.sleep(100)
        assert len(names_of(cluster)) == 1
        await asyncio.sleep(100)
    assert names_of(cluster) == []


@pytest.mark.parametrize(("bound_to", "moves"), [("a", False), ("b", True)])
async def test_claim_on_the_node(bound_to, moves):
    """A pod whose volume is bound to this node stays; a volume elsewhere is no reason to."""
    claim = {
        "metadata": {
            "name": "data",
            "namespace": "default",
            "annotations": {"volume.kubernetes.io/selected-node": bound_to},
        },
        "status": {"phase": "Bound"},
    }
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    cluster = cluster_with(pod(owner="rs", spec={"volumes": volumes}))
    cluster.put("persistentvolumeclaims", claim)
    async with process_on(cluster).running():
        await asyncio.sleep(60)
    assert (names_of(cluster) == []) is moves


async def test_started_in_time():
    """A pod that its lower cluster schedules before the threshold is left alone."""
    cluster = cluster_with(pod())
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD - 1)
        cluster.replace("pods", "default/p", status=pod(refused_at=None)["status"])
        await asyncio.sleep(60)
    assert process.client.writes == []
