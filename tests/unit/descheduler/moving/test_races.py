"""Changes of a pod between its judgement and its move."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from controller_runtime import resources
from descheduler.config import EvictionOptions, Limits
from descheduler.moving.mover import PassLimits
from tests.unit.descheduler.bodies import now, pod
from tests.unit.descheduler.refusing_clusters import THRESHOLD, cluster_with, frozen, names_of, process_on

pytestmark = pytest.mark.looptime


async def test_move_refused_by_stale_cache_counts_no_round():
    cluster = cluster_with(pod())
    process = process_on(cluster)
    read = process.client.get
    looks = 0

    async def get(resource: Any, name: str, **options: Any) -> dict[str, Any]:
        nonlocal looks
        found = await read(resource, name, **options)
        looks += resource is resources.PODS
        if resource is resources.PODS and looks == 1:
            found["metadata"]["resourceVersion"] = "newer"
        return found

    process.client.get = get  # type: ignore[method-assign]
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
    assert len(cluster.created) == 2
    history = cluster.find("configmaps", "kube-system/virtual-node-descheduler")
    assert history is not None
    assert json.loads(history["data"]["default.pod.p"])["rounds"] == 1


@pytest.mark.parametrize("grace", [0, 30], ids=["at once", "with grace"])
async def test_pod_deleted_by_user_after_its_record_is_not_recreated(grace):
    cluster = cluster_with(pod())
    process = process_on(cluster)

    async def delete(_: str) -> None:
        if process.client.writes[-1] == "create controllerrevisions":
            (found,) = cluster.all("pods")
            cluster.delete("pods", f"default/{found['metadata']['name']}", grace=grace)

    process.client.after = delete
    async with process.running():
        await asyncio.sleep(60)
    assert names_of(cluster) == []
    assert cluster.all("controllerrevisions") == []


async def test_pod_that_starts_before_its_eviction_is_not_evicted():
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster)

    async def start(what: str) -> None:
        if what == "create eviction":
            status = pod(refused_at=None, phase="Running")["status"]
            cluster.replace("pods", "default/p", status=status)

    process.client.before = start
    async with process.running():
        await asyncio.sleep(60)
    assert names_of(cluster) == ["p"]
    assert "Rescheduled" not in process.reasons()


async def test_pod_that_changes_and_stays_stuck_is_evicted_in_same_round():
    cluster = cluster_with(pod(owner="rs"))
    process = process_on(cluster)
    changes = 3

    async def change(what: str) -> None:
        nonlocal changes
        if what == "create eviction" and changes:
            changes -= 1
            cluster.replace("pods", "default/p", status=pod()["status"])

    process.client.before = change
    async with process.running():
        await asyncio.sleep(THRESHOLD + 10)
    assert names_of(cluster) == []
    history = cluster.find("configmaps", "kube-system/virtual-node-descheduler")
    assert history is not None
    assert json.loads(history["data"]["default.rs"])["rounds"] == 1


async def test_avoidance_in_template_causes_few_evictions():
    """Every pod of the template avoids a node that is not frozen."""
    cluster = cluster_with()
    process = process_on(cluster, limits=Limits(rounds=0))
    evicted = 0

    async def again(what: str) -> None:
        nonlocal evicted
        if what == "create eviction":
            evicted += 1
            cluster.put(
                "pods",
                pod(
                    f"p{evicted}",
                    owner="rs",
                    on="",
                    annotations={"unschedulable-node": "a"},
                    refused_at=now(),
                ),
            )

    process.client.after = again
    cluster.put("pods", pod(owner="rs", on="", annotations={"unschedulable-node": "a"}))
    async with process.running():
        await asyncio.sleep(3600)
    assert 1 <= evicted <= 8


@pytest.mark.parametrize(("reachable", "moves"), [(["a"], False), (["a", "b"], True), (["b"], True)])
@pytest.mark.parametrize("selected", ["", "a"])
async def test_volume_affinity_decides_whether_pod_moves(reachable, moves, selected):
    """Also for claims without a selected node, such as those bound by hand."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": reachable}]}
    volume = {
        "metadata": {"name": "pv"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
    }
    claim = {
        "metadata": {
            "name": "data",
            "namespace": "default",
            "annotations": {"volume.kubernetes.io/selected-node": selected} if selected else {},
        },
        "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"},
    }
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    cluster = cluster_with(pod(owner="rs", spec={"volumes": volumes}))
    cluster.put("persistentvolumes", volume)
    cluster.put("persistentvolumeclaims", claim)
    async with process_on(cluster).running():
        await asyncio.sleep(60)
    assert (names_of(cluster) == []) is moves
    assert bool(frozen(cluster)) is moves


def test_give_back_after_the_pass_changes_nothing():
    limits = PassLimits(EvictionOptions(max_per_node=1, pass_seconds=10))
    assert limits.take("a", "ns", now=0) == 0
    assert limits.take("b", "ns", now=11) == 0
    limits.give_back("a", "ns", taken=0)
    assert limits.take("a", "ns", now=12) == 0
    assert limits.take("a", "ns", now=13) > 0
