"""A tenant cannot make the caches of a lower cluster exceed their limit, which would stop it for all tenants."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.client.limits import CacheBudget
from tests.thorough import size
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene, clusters, mirroring, pod, running

pytestmark = pytest.mark.looptime

PODS = size(50, 100)
LIMIT = PODS * 20_000
LABELS = {"labels": {f"l{number}": "x" * 60 for number in range(200)}}


def full_scene() -> Scene:
    """Return a scene whose lower cluster has a limit of memory."""
    upper, lower = clusters()
    lower.caches = CacheBudget(LIMIT, cluster="lower1")
    return Scene(upper, lower)


def large(number: int, **metadata: Any) -> Any:
    """Return a pod of the noisy tenant."""
    made = pod(f"p{number}", uid=f"u-p{number}", nodeName="vn")
    made["metadata"] |= metadata
    return made


def below(scene: Scene) -> dict[str, Any]:
    """Return the labels of the lower pods by key."""
    return {
        key: body["metadata"]["labels"]
        for (plural, key), body in scene.lower.objects.items()
        if plural == "pods"
    }


async def test_pods_that_grow_after_their_start_do_not_fill_the_caches():
    """Each pod may grow by 16 KiB before its upper namespace is limited, so many small pods could grow together."""
    async with mirroring(full_scene()) as scene:
        for number in range(PODS):
            scene.upper.put("pods", large(number))
        await asyncio.sleep(30)
        assert len(below(scene)) == PODS
        for number in range(PODS):
            scene.upper.change("pods", f"shop/p{number}", metadata=LABELS)
        await asyncio.sleep(60)
        assert 0.6 * LIMIT < scene.lower.caches.used < 0.9 * LIMIT
        grown = [key for key, labels in below(scene).items() if "l0" in labels]
        assert 0.2 * PODS < len(grown) < 0.7 * PODS
        assert {reason for reason, _ in scene.events} == {"UpdateRefused"}
        waiting = next(key for key in below(scene) if key not in grown)
        scene.lower.change("pods", waiting, status={"phase": "Running"})
        await asyncio.sleep(60)
        assert scene.upper.the("pods", waiting)["status"]["phase"] == "Running"
        for key in grown:
            scene.upper.change("pods", key, metadata={"labels": dict.fromkeys(LABELS["labels"])})
        await asyncio.sleep(200)
        later = {key for key, labels in below(scene).items() if "l0" in labels}
        assert 0.2 * PODS < len(later) < 0.7 * PODS
        assert not later & set(grown)


async def test_large_pods_that_are_created_at_once_do_not_fill_the_caches():
    """Although the watch shows them late."""
    async with mirroring(full_scene()) as scene:
        scene.lower.held.add("pods")
        for number in range(PODS):
            scene.upper.put("pods", large(number, **LABELS))
        await asyncio.sleep(10)
        scene.lower.release("pods")
        await asyncio.sleep(10)
        assert 0.6 * LIMIT < scene.lower.caches.used < 0.8 * LIMIT
        assert {reason for reason, _ in scene.events} == {"LowerClusterFull"}
        scene.upper.put(
            "namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "quiet"}}
        )
        scene.bind("beside", uid="u-beside", namespace="quiet")
        await asyncio.sleep(10)
        assert "quiet/beside" in below(scene)


async def test_the_copy_of_a_config_map_does_not_grow_without_room():
    """A ConfigMap may grow to 1 MB after its pod has started."""
    async with running() as scene:
        config = {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "shop", "uid": "c-1"}}
        scene.upper.put("configmaps", config)
        scene.bind(volumes=[{"name": "v", "configMap": {"name": "c"}}])
        await asyncio.sleep(10)
        assert scene.is_below()
        scene.lower.fill()
        scene.upper.change("configmaps", "shop/c", metadata=LABELS)
        await asyncio.sleep(10)
        assert {reason for reason, _ in scene.events} == {"LowerClusterFull"}
        assert "l0" not in scene.lower.the("configmaps", "shop/c")["metadata"]["labels"]
        scene.lower.fill("other")
        await asyncio.sleep(100)
        assert "l0" in scene.lower.the("configmaps", "shop/c")["metadata"]["labels"]


async def test_a_config_map_of_a_namespace_without_room_has_no_copy():
    async with running() as scene:
        config = {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "shop", "uid": "c-1", **LABELS}}
        scene.upper.put("configmaps", config)
        scene.lower.fill()
        scene.bind(volumes=[{"name": "v", "configMap": {"name": "c"}}])
        await asyncio.sleep(10)
        assert not scene.is_below()
        assert scene.lower.find("configmaps", "shop/c") is None
        scene.lower.fill("other")
        await asyncio.sleep(100)
        assert scene.is_below()
