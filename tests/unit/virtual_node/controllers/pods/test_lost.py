"""Lower pods that are deleted in the lower cluster: what the upper pod reports, and how often."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterset.config import VolumeConfig
from clusterset.model import names
from clusterset.model.moving import movable
from clusterset.model.pod.conditions import condition
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import Forbidden
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    KEY,
    Scene,
    clusters,
    lower_pod,
    mirroring,
    pod,
    running,
)
from virtual_node.examine.objects import silent_lower_scheduler

pytestmark = pytest.mark.looptime

_NOW = "2026-01-01T00:00:00Z"
_RUNNING = {"phase": "Running", "startTime": _NOW}


def _ended(phase: str = "Failed", **status: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 137, "finishedAt": _NOW, "containerID": "containerd://1"}}
    return {**_RUNNING, "phase": phase, "containerStatuses": [{"name": "main", "state": state}], **status}


def _delete_below(scene: Scene, status: dict[str, Any]) -> None:
    """Do what a kubelet does with a pod that is deleted in the lower cluster: end it, then remove it."""
    deleting = {"deletionTimestamp": _NOW, "deletionGracePeriodSeconds": 1, "finalizers": ["test"]}
    scene.lower.change("pods", KEY, metadata=deleting)
    scene.lower.change("pods", KEY, status=status)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_deleted_pod_is_reported_once_with_the_result_of_its_containers(phase):
    """Also after the lower pod is gone, and when the upper pod changes."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(5)
        scene.lower.change("pods", KEY, status=_RUNNING)
        await asyncio.sleep(5)
        assert scene.above()["metadata"]["annotations"][names.ANNOTATION_LOWER_NODE] == "n1"
        _delete_below(scene, _ended(phase))
        await asyncio.sleep(5)
        for change in (
            lambda: scene.lower.remove("pods", KEY),
            lambda: scene.upper.change("pods", KEY, metadata={"labels": {"a": "b"}}),
        ):
            change()
            await asyncio.sleep(30)
            status = scene.above()["status"]
            assert (status["phase"], status["reason"]) == (phase, "LowerPodDeleted")
            assert status["containerStatuses"][0]["state"]["terminated"]["containerID"]
        assert [reason for reason, _ in scene.events] == ["LowerPodDeleted"]


@pytest.mark.parametrize(
    "status",
    [
        _ended(reason="Evicted"),
        _ended(
            conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
        ),
    ],
)
async def test_end_with_a_reason_of_its_own_is_no_loss(status):
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(5)
        scene.lower.change("pods", KEY, status=_RUNNING)
        await asyncio.sleep(5)
        _delete_below(scene, status)
        await asyncio.sleep(5)
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(30)
        assert scene.above()["status"]["phase"] == "Failed"
        assert scene.above()["status"].get("reason") == status.get("reason")
        assert not scene.events


@pytest.mark.parametrize(("node", "reason"), [("n1", None), ("gone", "DeletionByPodGC")])
async def test_pod_that_vanished_while_the_process_was_away(node, reason):
    """Its upper pod names the lower node, which still exists or does not."""
    upper, lower = clusters()
    lower.put("nodes", {"metadata": {"name": "n1", "creationTimestamp": "2025-01-01T00:00:00Z"}})
    body = pod("web", uid="u-1", nodeName="vn")
    body["metadata"]["annotations"] = {
        names.ANNOTATION_LOWER_UID: "l-1/u-1",
        names.ANNOTATION_LOWER_NODE: node,
    }
    upper.put("pods", {**body, "status": _RUNNING})
    scene = Scene(upper, lower)
    async with mirroring(scene):
        await asyncio.sleep(30)
        status = scene.above()["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "LowerPodDeleted")
        assert condition(status, "DisruptionTarget").get("reason") == reason


async def test_annotation_of_another_pod_is_replaced():
    """A user has created the pod from the manifest of another one, which has its lower node."""
    async with running() as scene:
        body = pod("web", uid="u-1", nodeName="vn")
        body["metadata"]["annotations"] = {
            names.ANNOTATION_LOWER_UID: "l-9/u-9",
            names.ANNOTATION_LOWER_NODE: "n9",
        }
        scene.upper.put("pods", body)
        await asyncio.sleep(5)
        scene.lower.change("pods", KEY, status=_RUNNING)
        await asyncio.sleep(5)
        assert scene.above()["metadata"]["annotations"][names.ANNOTATION_LOWER_NODE] == "n1"


@pytest.mark.parametrize("annotation", [names.ANNOTATION_LOWER_NODE, names.ANNOTATION_LOWER_UID])
@pytest.mark.parametrize("value", ["changed", None])
@pytest.mark.parametrize("is_up", [True, False])
async def test_changed_report_is_restored(annotation, value, is_up):
    """Also if it was changed while no process ran. Nothing else of the pod has changed."""
    upper, lower = clusters()
    scene, change = Scene(upper, lower), {"metadata": {"annotations": {annotation: value}}}
    async with mirroring(scene):
        scene.bind()
        await asyncio.sleep(5)
        lower.change("pods", KEY, status=_RUNNING)
        await asyncio.sleep(15)
        reported = scene.above()["metadata"]["annotations"]
        assert annotation in reported
        if is_up:
            await upper.patch(resources.PODS, "web", change, namespace="shop")
            await asyncio.sleep(5)
            assert scene.above()["metadata"]["annotations"] == reported
    if not is_up:
        await upper.patch(resources.PODS, "web", change, namespace="shop")
        async with mirroring(Scene(upper, lower)) as scene:
            await asyncio.sleep(5)
            assert scene.above()["metadata"]["annotations"] == reported


async def test_lower_cluster_that_was_restored_disrupts_its_pods():
    """Its revision is lower than that of the pod's last state."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(5)
        scene.lower.change("pods", KEY, status=_RUNNING)
        await asyncio.sleep(5)
        last = scene.caches.lower.store.get(KEY)
        assert last is not None
        later = lower_pod("u-1")
        later["metadata"]["resourceVersion"] = "999999"
        assert scene.pods._is_restored(from_dict(later))
        assert not scene.pods._is_restored(last)


_READY = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": _NOW}]}
_OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}


async def _deleting_below(scene: Scene, *, grace: int = 30, owners: Any = (_OWNER,)) -> None:
    """Bind a pod, and let the lower cluster delete its running lower pod: a drain, or the taint of a node that is lost."""
    scene.bind()
    scene.upper.change("pods", KEY, metadata={"ownerReferences": list(owners)})
    await asyncio.sleep(5)
    scene.lower.change("pods", KEY, spec={"nodeName": "n1"}, status=_RUNNING | _READY)
    await asyncio.sleep(5)
    assert condition(scene.above()["status"], "Ready")["status"] == "True"
    until = timestamps.rfc3339(datetime.now(UTC) + timedelta(seconds=grace))
    deleting = {"deletionTimestamp": until, "deletionGracePeriodSeconds": grace}
    scene.lower.change("pods", KEY, metadata=deleting)


def _lose_node(scene: Scene) -> None:
    lost = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    scene.lower.put("nodes", {"metadata": {"name": "n1"}, "status": {"conditions": lost}})


async def test_terminating_lower_pod_is_not_ready():
    """A kubelet leaves Ready as it is. Services of the upper cluster would send requests until the containers have ended."""
    async with running() as scene:
        await _deleting_below(scene)
        await asyncio.sleep(5)
        ready = condition(scene.above()["status"], "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "LowerPodTerminating")
        assert ready["lastTransitionTime"] != _NOW
        assert scene.above()["status"]["phase"] == "Running"
        before = scene.above()["metadata"]["resourceVersion"]
        await asyncio.sleep(5)
        assert scene.above()["metadata"]["resourceVersion"] == before


async def test_pod_whose_lower_node_is_lost_is_deleted_for_its_controller():
    """As on a real node: the pod is Terminating until its end is confirmed, and a ReplicaSet replaces it meanwhile."""
    async with running(volumes=VolumeConfig()) as scene:
        _lose_node(scene)
        await _deleting_below(scene)
        await asyncio.sleep(20)
        assert "deletionTimestamp" not in scene.above()["metadata"]
        await asyncio.sleep(60)
        assert "deletionTimestamp" in scene.above()["metadata"]
        assert scene.above()["status"]["phase"] == "Running"
        assert [reason for reason, _ in scene.events] == ["LowerNodeNotReady", "LowerPodDeleted"]
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(5)
        assert not scene.is_above()


async def test_pod_that_outlives_its_grace_period_is_deleted_for_its_controller():
    """The lower node is Ready, but its kubelet does not end the pod."""
    async with running() as scene:
        await _deleting_below(scene, grace=0)
        await asyncio.sleep(60)
        assert "deletionTimestamp" in scene.above()["metadata"]


async def test_pod_that_takes_long_to_end_is_deleted_for_its_controller():
    """A drain of the lower node with a long grace period, which the lower pod keeps."""
    async with running() as scene:
        await _deleting_below(scene, grace=3600)
        await asyncio.sleep(30)
        assert "deletionTimestamp" not in scene.above()["metadata"]
        await asyncio.sleep(20)
        assert scene.above()["metadata"]["deletionGracePeriodSeconds"] == 3600
        await asyncio.sleep(60)
        assert scene.below()["metadata"]["deletionGracePeriodSeconds"] == 3600
        assert [reason for reason, _ in scene.events] == ["LowerPodDeleted"]


async def test_pod_without_controller_stays_while_its_lower_node_is_lost():
    """Nothing would replace it, and its spec would be lost."""
    async with running(volumes=VolumeConfig()) as scene:
        _lose_node(scene)
        await _deleting_below(scene, owners=())
        await asyncio.sleep(600)
        assert "deletionTimestamp" not in scene.above()["metadata"]
        assert condition(scene.above()["status"], "Ready")["status"] == "False"
        assert [reason for reason, _ in scene.events] == ["LowerNodeNotReady"]


async def test_long_termination_is_reported_once_while_the_upper_cache_is_behind():
    """Each report would lengthen the back-off of the owner."""
    async with running() as scene:
        await _deleting_below(scene, grace=3600)
        scene.upper.held.add("pods")
        await asyncio.sleep(180)
        assert [reason for reason, _ in scene.events] == ["LowerPodDeleted"]
        assert len(scene.upper.asked("delete", "pods")) == 1


async def test_status_is_mirrored_while_the_upper_cluster_refuses_to_delete_the_pod():
    async with running() as scene:
        await _deleting_below(scene, grace=3600)
        scene.upper.fault = lambda verb, plural, _key: (
            Forbidden("a webhook refuses it", code=403) if (verb, plural) == ("delete", "pods") else None
        )
        await asyncio.sleep(100)
        scene.lower.change("pods", KEY, status={"message": "draining connections"})
        await asyncio.sleep(60)
        assert scene.above()["status"].get("message") == "draining connections"


async def test_a_pod_that_the_lower_scheduler_has_not_seen_has_no_lower_node():
    """It keeps PodScheduled=True of the upper scheduler, and may be moved at once if its cluster is lost."""
    async with running() as scene:
        scene.lower.server.observers.remove(scene.lower._schedule)  # there is no lower scheduler
        above = pod("web", uid="u-1", nodeName="vn")
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _NOW}
        scene.upper.put("pods", {**above, "status": {"phase": "Pending", "conditions": [scheduled]}})
        await asyncio.sleep(60)
        above = scene.above()
        assert condition(above["status"], "PodScheduled") == scheduled
        assert names.ANNOTATION_LOWER_UID in above["metadata"]["annotations"]
        assert not movable.has_lower_node(above["metadata"], above["status"])
        assert silent_lower_scheduler(above) == "default-scheduler"
        scene.lower.change("pods", KEY, spec={"nodeName": "n1"}, status={"conditions": [scheduled]})
        await asyncio.sleep(60)
        above = scene.above()
        assert movable.has_lower_node(above["metadata"], above["status"])
        assert not silent_lower_scheduler(above)
