"""Lower pods that are deleted in the lower cluster: what the upper pod reports, and how often."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime import resources
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
