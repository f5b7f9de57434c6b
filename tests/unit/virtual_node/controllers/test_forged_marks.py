"""Attacks: a user writes annotations on an upper pod that would make an unmanaged lower pod look owned."""

from __future__ import annotations

import asyncio

import pytest

from clusterset.model import names
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


def trap(
    name: str = "trap", *, where: str = "lowteam", upper_namespace: str = "shop", phase: str = "Running"
):
    """Return an older pod of a lower user with all marks of the lower pod of ``shop/web``."""
    body = pod(name, uid=f"{where}-{name}", namespace=where, nodeName="n1")
    body["metadata"] |= {
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "labels": {
            names.LABEL_UPPER_CLUSTER: CLUSTER,
            names.LABEL_UPPER_UID: "u-1",
            names.LABEL_NODE: "vn",
        },
        "annotations": {
            names.ANNOTATION_UPPER_NAMESPACE: upper_namespace,
            names.ANNOTATION_MADE_FOR: f"{CLUSTER}/shop/web/u-1",
        },
    }
    body["status"] = {"phase": phase, "podIP": "10.6.6.6"}
    return body


TRAPS = [trap(), trap("web"), trap("web", upper_namespace="lowteam"), trap(where="shop")]


@pytest.mark.parametrize("forged", TRAPS)
@pytest.mark.parametrize("is_first", [True, False])
async def test_older_pod_with_copied_marks_does_not_replace_the_lower_pod(forged, is_first):
    """Neither in a namespace of the lower user, where it is never deleted, nor under another name in ours."""
    upper, lower = clusters()
    lower.put("namespaces", {"metadata": {"name": "lowteam"}})
    async with mirroring(Scene(upper, lower)) as scene:
        if is_first:
            lower.put("pods", forged)
        scene.bind()
        await asyncio.sleep(10)
        assert scene.is_below()
        lower.put("pods", forged)
        ours = lower.the("pods", KEY)
        lower.change("pods", KEY, status={"phase": "Running", "podIP": "10.0.0.2"})
        await asyncio.sleep(10)
        found = scene.caches.lower_pod("u-1")
        assert found is not None
        assert found.uid == ours["metadata"]["uid"]
        assert scene.above()["status"]["podIP"] == "10.0.0.2"
        upper.change("pods", KEY, metadata=DELETING)
        await asyncio.sleep(10)
        assert "deletionTimestamp" in lower.the("pods", KEY)["metadata"]
        lower.remove("pods", KEY)
        await asyncio.sleep(60)
        assert not scene.is_above()
        # In our own namespaces, a pod with our marks and without an upper pod is an orphan.
        is_in_our_namespace = forged["metadata"]["namespace"] == "shop"
        assert lower.asked("delete", "pods") == [KEY, *(["shop/trap"] if is_in_our_namespace else [])]


async def test_pods_of_others_with_copied_marks_take_no_memory_and_are_never_deleted():
    """They are no orphans of a pod that does not exist."""
    upper, lower = clusters()
    lower.put("namespaces", {"metadata": {"name": "lowteam"}})
    for number in range(20):
        body = trap(f"trap-{number}")
        body["metadata"]["labels"][names.LABEL_UPPER_UID] = f"gone-{number}"
        lower.put("pods", body)
        metadata = {**body["metadata"], "name": f"big-{number}"}
        for plural, kind in (("configmaps", "ConfigMap"), ("secrets", "Secret"), ("services", "Service")):
            lower.put(plural, {"apiVersion": "v1", "kind": kind, "metadata": metadata})
    async with mirroring(Scene(upper, lower)) as scene:
        await asyncio.sleep(1200)
        caches = scene.all_caches
        stored = (caches.pods.lower, caches.config_maps, caches.secrets, caches.lower_services)
        assert [len(informer.store) for informer in stored] == [0, 0, 0, 0]
        assert not [call for call in lower.calls if call[0] in {"patch", "delete"}]


async def test_pod_in_the_namespace_of_others_is_not_taken_for_one_that_waits():
    """Without a prefix, the unmanaged lower namespace has the name of the upper one, and the pod has the right name."""
    upper, lower = clusters()
    lower.put("namespaces", {"metadata": {"name": "shop"}})
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        lower.put("pods", trap("web", where="shop"))
        await asyncio.sleep(120)
        assert scene.caches.lower_pod("u-1") is None
        assert "podIP" not in scene.above()["status"]
        assert {reason for reason, _ in scene.events} == {"NamespaceNotAdopted"}
        upper.change("pods", KEY, metadata=DELETING)
        await asyncio.sleep(60)
        assert not scene.is_above()
        assert not lower.asked("delete", "pods")


async def test_objects_are_read_when_their_namespace_gets_its_marks_again():
    """An administrator of the lower cluster removed all marks for a while."""
    upper, lower = clusters()
    bare = {"metadata": {"name": "shop"}}
    ours = lower.the("namespaces", "shop")
    async with mirroring(Scene(upper, lower)) as scene:
        lower.put("namespaces", bare)
        await asyncio.sleep(10)
        metadata = {
            "name": "settings",
            "namespace": "shop",
            "labels": {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: "u-2"},
            "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "shop"},
        }
        lower.put("configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        await asyncio.sleep(10)
        assert scene.all_caches.config_maps.store.get("shop/settings") is None
        lower.put("namespaces", ours)
        await asyncio.sleep(10)
        assert scene.all_caches.config_maps.store.get("shop/settings") is not None


async def test_namespace_without_its_label_is_marked_again_and_its_pods_are_followed():
    """The second mark of the namespace proves that it is ours."""
    upper, lower = clusters()
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        await asyncio.sleep(10)
        lower.change("namespaces", "shop", metadata={"labels": {names.LABEL_UPPER_CLUSTER: None}})
        await asyncio.sleep(10)
        lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(10)
        assert lower.the("namespaces", "shop")["metadata"]["labels"][names.LABEL_UPPER_CLUSTER] == CLUSTER
        assert scene.above()["status"]["phase"] == "Running"
