"""Attacks: a user writes annotations on an upper pod that would make an unmanaged lower pod look owned."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.api import names
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    CLUSTER,
    KEY,
    Scene,
    clusters,
    mirroring,
    pod,
    running,
)

pytestmark = pytest.mark.looptime

NATIVE = "native-uid"
FORGED = {names.ANNOTATION_LOWER_UID: f"{NATIVE}/u-1", names.ANNOTATION_MADE_FOR: f"{CLUSTER}/shop/web/u-1"}
DELETING = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30}


def native(**metadata):
    """Create a pod of a lower user with the upper pod's name."""
    body = pod("web", uid=NATIVE, nodeName="lower-node")
    body["metadata"] |= metadata
    body["status"] = {"phase": "Running"}
    return body


def is_untouched(scene: Scene) -> bool:
    """Report whether nothing was written to, or deleted from, the lower cluster's pods."""
    return not scene.lower.asked("patch", "pods") and not scene.lower.asked("delete", "pods")


@pytest.mark.parametrize("status", [{}, {"startTime": "2026-01-01T00:00:00Z", "phase": "Running"}])
async def test_forged_lower_uid_does_not_take_over_an_unmanaged_pod(status):
    """The annotation has the unmanaged pod's live uid; only the pod that carries it fails."""
    async with running() as scene:
        scene.lower.put("pods", native())
        scene.bind()
        await asyncio.sleep(10)
        scene.upper.change("pods", KEY, metadata={"annotations": FORGED}, status=status)
        await asyncio.sleep(120)
        assert is_untouched(scene)
        assert scene.above()["status"]["phase"] == "Failed"
        assert names.LABEL_UPPER_UID not in (scene.below()["metadata"].get("labels") or {})


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_pod_with_forged_lower_uid_is_deleted_without_the_unmanaged_pod(is_restarted):
    """Its deletion reaches the upper pod only, in the process that saw it first and in a new one."""
    upper, lower = clusters()
    lower.put("pods", native())
    body = pod("web", uid="u-1", nodeName="vn")
    body["metadata"]["annotations"] = FORGED
    if is_restarted:
        body["metadata"] |= DELETING
    upper.put("pods", body)
    async with mirroring(Scene(upper, lower)) as scene:
        await asyncio.sleep(10)
        if not is_restarted:
            scene.upper.change("pods", KEY, metadata=DELETING)
        await asyncio.sleep(60)
        assert is_untouched(scene)
        assert not scene.is_above()


async def test_pod_stripped_of_all_labels_is_recognised_by_its_own_annotation():
    """The lower object proves it: the upper pod has no annotation yet, and the process is new."""
    upper, lower = clusters()
    async with mirroring(Scene(upper, lower)) as first:
        first.bind()
        await asyncio.sleep(1)
    ours = (names.LABEL_UPPER_CLUSTER, names.LABEL_UPPER_UID, names.LABEL_NODE)
    lower.change("pods", KEY, metadata={"labels": dict.fromkeys(ours)})
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(60)
        assert second.below()["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"
        assert second.above()["status"]["phase"] != "Failed"


async def test_pod_that_lost_all_ownership_data_is_left_alone():
    """Nothing on the lower object proves the ownership, whatever the upper pod has."""
    upper, lower = clusters()
    async with mirroring(Scene(upper, lower)) as first:
        first.bind()
        await asyncio.sleep(10)
    below = lower.the("pods", KEY)
    lower.put("pods", {**below, "metadata": {**below["metadata"], "labels": {}, "annotations": {}}})
    lower.calls.clear()
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(60)
        assert is_untouched(second)
        assert second.above()["status"]["reason"] == "LowerPodDeleted"
