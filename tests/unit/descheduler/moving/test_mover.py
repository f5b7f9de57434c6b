"""Rules about moving, on a fake cluster in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from descheduler.config import Limits
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


async def test_evicts_owned_pod_after_writing_what_to_avoid():
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
    assert process.client.writes[-1] == "create eviction"
    assert frozen(cluster) == {"default.rs": {"namespace": "default", "nodes": {"a": "2026-01-01T00:00:10Z"}}}
    assert names_of(cluster) == []
    assert process.reasons() == ["Rescheduled"]


async def test_removes_frozen_nodes_after_freeze_period():
    cluster = cluster_with(pod(owner="rs"))
    async with process_on(cluster).running():
        await asyncio.sleep(THRESHOLD + 330)
    assert frozen(cluster) == {}


async def test_next_process_respects_backoff_of_earlier_rounds():
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


async def test_stuck_pods_of_one_owner_move_in_one_round():
    cluster = cluster_with(*(pod(f"p{number}", owner="rs") for number in range(3)))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
    assert names_of(cluster) == []
    history = cluster.find("configmaps", "kube-system/virtual-node-descheduler")
    assert history is not None
    assert json.loads(history["data"]["default.rs"])["rounds"] == 1


async def test_doubles_pauses_and_gives_up_after_maximum_until_window_ends():
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


async def test_pod_stays_until_another_virtual_node_is_ready():
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
async def test_pod_stays_if_no_other_node_admits_it(spec):
    cluster = cluster_with(pod(spec=spec))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(60)
    assert process.client.writes == []


async def test_avoided_node_is_used_again_if_all_others_refuse():
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


@pytest.mark.parametrize("nodes", [("a", "b"), ("a", "b", "c")])
async def test_bare_pod_refused_on_all_nodes_avoids_only_the_last(nodes):
    """Its tolerations do not admit it on node ``c``."""
    cluster = cluster_with(pod(), nodes=nodes)
    if "c" in nodes:
        taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
        cluster.replace("nodes", "c", spec={**node("c")["spec"], "taints": [taint]})
    process = process_on(cluster)

    async def schedule(what: str) -> None:
        """Bind the pod to a node that its affinity allows; that cluster refuses it."""
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


async def test_recreates_pending_bare_pod_without_expired_avoidance():
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


@pytest.mark.parametrize("owner", ["", "rs"])
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_pending_pod_may_return_when_the_last_other_node_closes(owner, is_deleted):
    """Otherwise it would wait for the end of the freeze period with no node that it may use."""
    cluster = cluster_with(pod(owner=owner))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
        waiting = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
        if owner:
            cluster.put("pods", pod("p1", owner=owner, on="", annotations={"unschedulable-node": "a"}))
        else:
            cluster.replace("pods", "default/p", status=waiting)
        await asyncio.sleep(60)
        if is_deleted:
            cluster.delete("nodes", "b")
        else:
            cluster.replace("nodes", "b", spec={**node("b")["spec"], "unschedulable": True})
        await asyncio.sleep(15)
    if owner:
        assert names_of(cluster) == []
    else:
        assert "affinity" not in cluster.all("pods")[0]["spec"]


async def test_evicts_pending_owned_pod_only_after_freeze_period():
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


async def test_pending_owned_pod_stays_if_the_avoided_node_does_not_admit_it():
    """Another pod of its StatefulSet was refused on ``a``, and its own volume is in the cluster of ``b``."""
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster)
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
        waiting = pod(
            "p1", owner="rs", on="", spec={"affinity": affinity}, annotations={"unschedulable-node": "a"}
        )
        cluster.put("pods", waiting)
        await asyncio.sleep(600)
    assert names_of(cluster) == ["p1"]


async def test_retries_eviction_until_disruption_budget_allows_it():
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


async def test_dry_run_records_one_event_per_pod_and_writes_nothing():
    cluster = cluster_with(pod("bare"), pod("owned", owner="rs"))
    process = process_on(cluster, dry_run=True)
    async with process.running():
        await asyncio.sleep(600)
    assert process.client.writes == []
    assert process.reasons() == ["WouldReschedule"] * 2


async def test_limit_per_node_delays_other_pods_to_later_passes():
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
async def test_pod_stays_if_its_volume_is_bound_to_the_node(bound_to, moves):
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


@pytest.mark.parametrize(("value", "moved_after"), [("60", 65.0), ("1", THRESHOLD), ("soon", THRESHOLD)])
async def test_pod_that_waits_for_a_new_lower_node_is_not_moved(value, moved_after):
    """For as long as the virtual node's annotation says, if that is longer than the threshold."""
    cluster = cluster_with(pod())
    found = node("a")
    found["metadata"]["annotations"] = {"virtual-node.io/provision-seconds": value}
    cluster.put("nodes", found)
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(moved_after - 2)
        assert process.client.writes == []
        await asyncio.sleep(10)
        assert process.client.writes


async def test_pod_scheduled_before_threshold_is_not_moved():
    cluster = cluster_with(pod())
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD - 1)
        cluster.replace("pods", "default/p", status=pod(refused_at=None)["status"])
        await asyncio.sleep(60)
    assert process.client.writes == []
