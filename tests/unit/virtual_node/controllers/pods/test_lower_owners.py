"""The controller reference of lower pods: who has it, when it is restored, and what is reported of other controllers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    Scene,
    clusters,
    lower_namespace,
    lower_pod,
    mirroring,
    running,
)
from virtual_node.translate.base import ownership

pytestmark = pytest.mark.looptime
REPLICA_SET = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "web-7d",
    "uid": "rs",
    "controller": True,
}


def reference(scene: Scene, namespace: str = "shop") -> list[dict[str, Any]]:
    """Return the owner references that a lower pod should have."""
    uid = scene.lower.the("namespaces", namespace)["metadata"]["uid"]
    return [ownership.controller_reference(namespace, uid)]


@pytest.mark.parametrize(
    ("references", "controller"),
    [
        ([], ""),
        ([ownership.controller_reference("shop", "u")], ""),
        ([REPLICA_SET], "ReplicaSet web-7d"),
        ([{**REPLICA_SET, "controller": False}], ""),
        ([{**REPLICA_SET, "apiVersion": "example.com/v1", "kind": "Namespace"}], "Namespace web-7d"),
    ],
)
def test_only_our_namespace_is_no_controller_of_the_lower_cluster(references, controller):
    """Others may have a kind of the same name."""
    pod = from_dict({"metadata": {"name": "web", "ownerReferences": references}})
    assert ownership.lower_controller(pod) == controller


async def test_new_lower_pod_has_its_namespace_as_controller():
    """So no ReplicaSet of the lower cluster adopts it."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        assert scene.below()["metadata"]["ownerReferences"] == reference(scene)
        assert not scene.lower.asked("patch", "pods")


@pytest.mark.parametrize("others", [[], [{**REPLICA_SET, "controller": False}]])
async def test_pod_without_controller_gets_one(others):
    """It was created by an earlier release, or its reference was removed. Other owners stay."""
    upper, lower = clusters()
    body = lower_pod("u-1")
    body["metadata"]["ownerReferences"] = others
    lower.put("pods", body)
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        await asyncio.sleep(5)
        found = scene.below()["metadata"]["ownerReferences"]
        assert sorted(found, key=str) == sorted([*others, *reference(scene)], key=str)
        assert scene.below()["metadata"]["uid"] == "l-of-u-1"


async def test_adopted_pod_is_left_to_its_controller_and_reported():
    """A second controller is not possible; the event names the first one."""
    upper, lower = clusters()
    body = lower_pod("u-1")
    body["metadata"]["ownerReferences"] = [REPLICA_SET]
    lower.put("pods", body)
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        await asyncio.sleep(5)
        assert scene.below()["metadata"]["ownerReferences"] == [REPLICA_SET]
        ((reason, message),) = scene.events
        assert reason == "AdoptedInLowerCluster"
        assert "ReplicaSet web-7d in namespace shop of lower cluster lower1" in message


async def test_finished_and_deleted_pods_get_no_controller():
    """ReplicaSets do not adopt them."""
    upper, lower = clusters()
    body = lower_pod("u-1")
    body["status"]["phase"] = "Succeeded"
    lower.put("pods", body)
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        await asyncio.sleep(5)
        assert "ownerReferences" not in scene.below()["metadata"]


@pytest.mark.parametrize("is_ours", [True, False])
async def test_recreated_namespace_is_read_again(is_ours):
    """The garbage collector deletes pods whose owner has another uid. An adopted namespace is not watched."""
    upper, lower = clusters()
    body: dict[str, Any] = (
        lower_namespace()
        if is_ours
        else {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    )
    lower.remove("namespaces", "shop")
    lower.put("namespaces", body)
    async with mirroring(Scene(upper, lower, namespaces=NamespaceConfig(adopt=True))) as scene:
        scene.bind("a", uid="u-a")
        await asyncio.sleep(1)
        before = reference(scene)
        assert scene.below("a")["metadata"]["ownerReferences"] == before
        lower.remove("pods", "shop/a")
        lower.remove("namespaces", "shop")
        lower.put("namespaces", {**body, "metadata": {**body["metadata"], "uid": "another"}})
        await asyncio.sleep(11)
        scene.bind("b", uid="u-b")
        await asyncio.sleep(1)
        assert scene.below("b")["metadata"]["ownerReferences"] == reference(scene) != before


async def test_namespace_is_not_read_for_each_pod():
    """Hundreds of pods cost one request at most."""
    async with running() as scene:
        for number in range(50):
            scene.bind(f"p{number}", uid=f"u-{number}")
        await asyncio.sleep(2)
        assert len(scene.lower.asked("get", "namespaces")) <= 1


async def test_deletion_of_an_adopted_pod_names_the_controller():
    """So does the conflict with a pod that a lower controller has made."""
    upper, lower = clusters()
    body = lower_pod("u-1")
    body["metadata"]["ownerReferences"] = [REPLICA_SET]
    lower.put("pods", body)
    other = {**lower_pod("u-2", name="other"), "metadata": {"name": "db", "namespace": "shop"}}
    other["metadata"]["ownerReferences"] = [{**REPLICA_SET, "kind": "StatefulSet", "name": "db"}]
    lower.put("pods", other)
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        scene.bind("db", uid="u-db")
        await asyncio.sleep(2)
        lower.remove("pods", "shop/web")
        await asyncio.sleep(2)
        events = dict(scene.events)
        assert "ReplicaSet web-7d of that cluster had adopted it" in events["LowerPodDeleted"]
        assert "StatefulSet db" in events["NameConflict"]
