"""Which lower pod belongs to which upper pod, after restarts, outages, lower changes, and reused names."""

from __future__ import annotations

import asyncio

import pytest

from clusterset.model import names
from controller_runtime.errors import Unavailable
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

DELETING = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30}


async def test_a_stale_cache_is_no_reason_to_delete():
    """The upper watch is silent since an outage: a pod that it has not shown yet is no orphan."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.upper.held.add("pods")
        scene.bind()
        scene.lower.put("pods", lower_pod("u-1"))  # another replica has created it
        await asyncio.sleep(120)
        assert "deletionTimestamp" not in scene.below()["metadata"]
        scene.upper.release("pods")
        await asyncio.sleep(10)
        assert names.ANNOTATION_LOWER_UID in scene.above()["metadata"]["annotations"]


@pytest.mark.parametrize("label", [names.LABEL_UPPER_CLUSTER, names.LABEL_UPPER_UID, names.LABEL_NODE])
async def test_any_removed_ownership_label_is_restored(label):
    """Without it the watch does not show the pod."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, metadata={"labels": {label: None}})
        await asyncio.sleep(30)
        assert scene.below()["metadata"]["labels"][label]
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(10)
        assert scene.above()["status"]["phase"] == "Running"


@pytest.mark.parametrize("is_forced", [False, True])
async def test_a_pod_without_labels_ends_with_its_upper_pod(is_forced):
    """Its labels are removed while the upper pod is being deleted: it would run forever, unnoticed."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.fault = lambda verb, _plural, _key: Unavailable("down") if verb == "patch" else None
        scene.lower.change("pods", KEY, metadata={"labels": {names.LABEL_UPPER_CLUSTER: None}})
        await asyncio.sleep(1)
        if is_forced:
            scene.upper.remove("pods", KEY)
        else:
            scene.upper.change("pods", KEY, metadata=DELETING)
        await asyncio.sleep(30)
        assert "deletionTimestamp" in scene.below()["metadata"]
        assert (scene.upper.find("pods", KEY) is None) is is_forced
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(30)
        assert scene.upper.find("pods", KEY) is None


async def test_a_pod_that_lost_its_labels_during_downtime_ends_with_its_upper_pod():
    """The new process has never seen it; the upper pod's annotation identifies it."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(10)
    lower.change("pods", KEY, metadata={"labels": {names.LABEL_UPPER_CLUSTER: None}})
    upper.change("pods", KEY, metadata=DELETING)
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(30)
        assert "deletionTimestamp" in second.below()["metadata"]
        assert second.is_above()
        lower.remove("pods", KEY)
        await asyncio.sleep(30)
        assert not second.is_above()


async def test_a_pod_without_labels_is_claimed_again():
    """It still runs with the known uid: reporting it lost would start it twice."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(1)
        scene.lower.change(
            "pods", KEY, metadata={"labels": {names.LABEL_UPPER_CLUSTER: None, names.LABEL_UPPER_UID: None}}
        )
        await asyncio.sleep(60)
        above, below = scene.above(), scene.below()
        assert above["status"]["phase"] == "Running"
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"


async def test_a_copy_of_a_mirrored_pod_starts():
    """A restored backup, or kubectl get -o yaml | kubectl create, has the virtual node's annotation."""
    async with running() as scene:
        body = pod("web", uid="u-2", nodeName="vn")
        body["metadata"]["annotations"] = {names.ANNOTATION_LOWER_UID: "l-1/u-1"}
        scene.upper.put("pods", body)
        await asyncio.sleep(1)
        assert scene.is_below()


async def test_a_mirrored_pod_is_not_started_again_after_a_restart():
    """Its lower pod was deleted during the downtime: Failed, for its owner to decide."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(1)
        lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(1)
    lower.remove("pods", KEY)
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(10)
        above = second.above()
        assert (above["status"]["phase"], above["status"]["reason"]) == ("Failed", "LowerPodDeleted")
        assert not second.is_below()


async def test_recreates_token_secret_deleted_during_downtime():
    """The lower pod runs and reads it."""
    upper, lower = clusters()
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    first = Scene(upper, lower, enable_serviceaccount=True)
    async with mirroring(first):
        first.bind(volumes=[{"name": "token", **token}])
        await asyncio.sleep(10)
        [(_, key)] = [one for one in lower.objects if one[0] == "secrets"]
        assert first.is_below()
    lower.remove("secrets", key)
    async with mirroring(Scene(upper, lower, enable_serviceaccount=True)):
        await asyncio.sleep(10)
        assert lower.find("secrets", key)


async def test_a_started_pod_is_not_started_again_without_its_annotation():
    """An earlier release wrote only the lower uid, or could not write it: its start time suffices as proof."""
    upper, lower = clusters()
    body = pod("web", uid="u-1", nodeName="vn")
    body["metadata"]["annotations"] = {names.ANNOTATION_LOWER_UID: "l-1"}
    body["status"] |= {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    upper.put("pods", body)
    async with mirroring(Scene(upper, lower)) as scene:
        await asyncio.sleep(10)
        above = scene.above()
        assert (above["status"]["phase"], above["status"]["reason"]) == ("Failed", "LowerPodDeleted")
        assert not scene.is_below()


async def test_an_unmanaged_predecessor_is_deleted():
    """Its virtual node was removed from the configuration; its upper pod is deleted, because this one has its name."""
    async with running() as scene:
        scene.lower.put("pods", lower_pod("u-0", node="vn-of-last-year"))
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(60)
        below = scene.below()
        assert scene.lower.asked("delete", "pods") == [KEY]
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"


async def test_a_stale_upper_pod_does_not_replace_its_successor():
    """The cache still has the old pod; the lower one of that name belongs to the new one, on another node."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.lower.fault = lambda verb, plural, _key: (
            Unavailable("down") if (verb, plural) == ("create", "pods") else None
        )
        scene.bind(uid="u-1")
        await asyncio.sleep(1)
        scene.upper.held.add("pods")
        scene.upper.remove("pods", KEY)
        scene.upper.put("pods", pod("web", uid="u-2", nodeName="another"))
        scene.lower.put("pods", lower_pod("u-2", node="another"))
        scene.lower.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(120)
        assert scene.lower.asked("delete", "pods") == []


async def test_pods_of_two_upper_namespaces_in_one_lower_one_are_distinguished():
    """Two pods of one name exclude each other; the second has a reason why it waits, and the first continues."""
    async with running() as scene:
        scene.lower.put("pods", lower_pod("u-0", namespace="market", node="another"))
        scene.bind()
        await asyncio.sleep(60)
        assert [reason for reason, _ in scene.events] == ["NameConflict"]
        assert scene.lower.asked("delete", "pods") == []


async def test_a_copy_of_a_lower_pod_is_ignored():
    """With kubectl get -o yaml | kubectl create in the lower cluster it has all labels; the original pod is the older one."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running", "podIP": "10.0.0.1"})
        await asyncio.sleep(1)
        for number in range(5):
            copied = lower_pod("u-1", name=f"copy-{number}")
            copied["metadata"] |= {"uid": f"copy-{number}", "creationTimestamp": "2026-01-02T00:00:00Z"}
            copied["status"] = {"phase": "Failed"}
            scene.lower.put("pods", copied)
        await asyncio.sleep(10)
        assert scene.above()["status"]["phase"] == "Running"


async def test_a_recreated_name_is_another_pod():
    """The old pod is force-deleted and recreated: its lower pod ends before the new one starts."""
    async with running() as scene:
        scene.bind(uid="u-1")
        await asyncio.sleep(1)
        scene.upper.remove("pods", KEY)
        scene.bind(uid="u-2")
        await asyncio.sleep(10)
        below = scene.below()
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"
        assert "deletionTimestamp" in below["metadata"]
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(1)
        assert scene.below()["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-2"


async def test_a_pod_recreated_during_an_outage_is_distinguished():
    """A list after an outage shows another pod of the name: the first has ended, the second is created, nothing mixes."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind(uid="u-1")
        await asyncio.sleep(1)
        lower.change("pods", KEY, status={"phase": "Running", "podIP": "10.0.0.1"})
        await asyncio.sleep(1)
    upper.remove("pods", KEY)
    upper.put("pods", pod("web", uid="u-2", nodeName="vn"))
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(1)
        assert "podIP" not in second.above()["status"]
        lower.remove("pods", KEY)
        await asyncio.sleep(1)
        assert second.below()["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-2"
