"""Pods of a namespace that exceeds its limit of memory: their stubs are small, and they are not reported wrongly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.objects import from_dict
from controller_runtime.store import is_stub
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, Scene, pod, running
from virtual_node.config.types import LimitsConfig
from virtual_node.controllers.base.caches import pod_stub

pytestmark = pytest.mark.looptime

LIMIT = 100_000
GROWN = {"annotations": {"text": "x" * 3 * LIMIT}}
TEXT = "x" * 200_000
MARK = f"{names.DOMAIN}/lower-uid"


@pytest.mark.parametrize(
    ("metadata", "spec"),
    [
        ({"finalizers": [f"a/{number}" for number in range(50_000)]}, {}),
        ({"annotations": {MARK: TEXT}}, {}),
        ({"labels": {f"l{number}": "x" * 60 for number in range(5_000)}}, {}),
        ({}, {"tolerations": [{"key": f"k{number}", "operator": "Exists"} for number in range(10_000)]}),
        ({}, {"containers": [{"name": "main", "image": TEXT}]}),
        ({}, {"initContainers": [{"name": "first", "image": TEXT}]}),
    ],
    ids=["finalizers", "mark", "labels", "tolerations", "images", "images of init containers"],
)
def test_nothing_that_a_user_adds_to_a_running_pod_is_kept_in_its_stub(metadata: Any, spec: Any):
    whole = pod("web", uid="u-1", nodeName="vn", **spec)
    whole["metadata"] |= metadata
    whole["status"]["startTime"] = "2026-01-01T00:00:00Z"
    grown = from_dict(whole)
    assert grown.memory > len(TEXT)
    stub = pod_stub(grown)
    assert is_stub(stub)
    assert stub.memory < 2_000
    assert bool(stub.metadata.finalizers) == bool(grown.metadata.finalizers)


def test_the_stub_of_a_running_pod_keeps_what_its_dependencies_and_containers_are_found_by():
    variable = {"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    whole = pod("web", uid="u-1", containers=[{"name": "main", "image": "web:1", "env": [variable]}])
    whole["status"]["startTime"] = "2026-01-01T00:00:00Z"
    whole["metadata"]["annotations"] = {MARK: "l-1/u-1"}
    stub = pod_stub(from_dict(whole))
    assert stub.spec["containers"] == [{"name": "main", "env": [variable]}]
    assert stub.annotations == {MARK: "l-1/u-1"}


async def grown(scene: Scene, phase: str) -> None:
    """Let a pod start, reach a phase, and grow beyond the limit of its namespace."""
    scene.bind()
    await asyncio.sleep(10)
    scene.lower.change("pods", KEY, status={"phase": phase, "startTime": "2026-01-01T00:00:00Z"})
    await asyncio.sleep(10)
    assert scene.above()["status"]["phase"] == phase
    scene.upper.change("pods", KEY, metadata=GROWN)
    await asyncio.sleep(10)
    cached = scene.caches.upper_pod("u-1")
    assert cached is not None
    assert is_stub(cached)


async def test_a_pod_that_grew_beyond_the_limit_fails_when_its_lower_pod_is_deleted():
    """Its owner replaces a failed pod; it would wait for a pending one without end."""
    async with running(limits=LimitsConfig(cache_bytes_per_namespace=LIMIT)) as scene:
        await grown(scene, "Running")
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(60)
        assert scene.above()["status"]["phase"] == "Failed"
        assert [reason for reason, _ in scene.events] == ["LowerPodDeleted"]


async def test_a_pod_that_grew_beyond_the_limit_is_deleted_and_its_status_followed():
    """Although its stubs have no version, each of them replaces the one before."""
    async with running(limits=LimitsConfig(cache_bytes_per_namespace=LIMIT)) as scene:
        await grown(scene, "Running")
        scene.lower.change("pods", KEY, status={"message": "news"})
        await asyncio.sleep(10)
        assert scene.above()["status"]["message"] == "news"
        await scene.upper.delete(resources.PODS, "web", namespace="shop", grace_period_seconds=5)
        await asyncio.sleep(10)
        assert "deletionTimestamp" in scene.below()["metadata"]
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(10)
        assert not scene.is_above()


async def test_a_finished_pod_that_grew_beyond_the_limit_stays_finished():
    async with running(limits=LimitsConfig(cache_bytes_per_namespace=LIMIT)) as scene:
        await grown(scene, "Succeeded")
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(200)
        assert scene.above()["status"]["phase"] == "Succeeded"
        assert scene.events == []


async def test_a_pod_that_is_too_large_from_the_start_waits():
    async with running(limits=LimitsConfig(cache_bytes_per_namespace=LIMIT)) as scene:
        large = pod("web", uid="u-1", nodeName="vn")
        large["metadata"] |= GROWN
        scene.upper.put("pods", large)
        await asyncio.sleep(10)
        assert not scene.is_below()
        assert [reason for reason, _ in scene.events] == ["NamespaceTooLarge"]
        scene.upper.change("pods", KEY, metadata={"annotations": {"text": "x"}})
        await asyncio.sleep(10)
        assert scene.is_below()
