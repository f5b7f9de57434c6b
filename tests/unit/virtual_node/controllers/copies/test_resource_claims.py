"""ResourceClaims and ResourceClaimTemplates follow pods to the lower cluster, and devices are reported."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.errors import NotFound
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    CLUSTER,
    Scene,
    clusters,
    mirroring,
    running,
)

pytestmark = pytest.mark.looptime

API = "resource.k8s.io/v1"
SHARED = [{"name": "gpu", "resourceClaimName": "shared"}]
OWN = [{"name": "gpu", "resourceClaimTemplateName": "one"}]


def claim(name: str = "shared", **exactly: Any) -> dict[str, Any]:
    """Return a claim."""
    requests = [{"name": "one", "exactly": {"deviceClassName": "gpu", **exactly}}]
    metadata = {"name": name, "namespace": "shop"}
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": requests}},
    }


def template() -> dict[str, Any]:
    """Return a template."""
    metadata = {"name": "one", "namespace": "shop"}
    return {
        "apiVersion": API,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": claim()["spec"]},
    }


def allocated(pod: str) -> dict[str, Any]:
    """Return the status of a claim with a device for a pod."""
    result = {"request": "one", "driver": "d", "pool": "n1", "device": "gpu-0"}
    return {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": "x"}],
    }


def devices(scene: Scene) -> dict[str, Any]:
    """Return the devices that the upper pod reports."""
    found: dict[str, Any] = json.loads(
        scene.above()["metadata"].get("annotations", {}).get(names.ANNOTATION_ALLOCATED_DEVICES, "{}")
    )
    return found


async def test_a_shared_claim_follows_its_pod_and_its_device_is_reported():
    """The copy is deleted some time after the last pod."""
    async with running(takes_claims=True) as scene:
        scene.upper.put("resourceclaims", claim())
        scene.bind(resourceClaims=SHARED)
        await asyncio.sleep(5)
        assert scene.below()["spec"]["resourceClaims"] == SHARED
        assert scene.lower.the("resourceclaims", "shop/shared")["spec"] == claim()["spec"]
        assert devices(scene) == {}
        scene.lower.change("resourceclaims", "shop/shared", status=allocated("web"))
        await asyncio.sleep(20)
        assert [one["device"] for one in devices(scene)["gpu"]] == ["gpu-0"]
        assert ("DevicesAllocated", "Lower cluster lower1 allocated d/n1/gpu-0") in scene.events
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        await asyncio.sleep(120)
        assert scene.lower.find("resourceclaims", "shop/shared") is None


@pytest.mark.parametrize(
    ("entry", "reasons"),
    [
        (OWN[0], ["ResourceClaimRefused"]),
        ({"name": "gpu", "resourceClaimTemplateName": "other"}, []),
        ({"name": "nic", "resourceClaimTemplateName": "one"}, []),
        (None, []),
    ],
)
async def test_a_claim_that_a_pod_group_generates_refuses_the_pod(
    entry: dict[str, str] | None, reasons: list[str]
):
    """The upper cluster makes one for all pods of the group, and the lower cluster would make one for each."""
    async with running(takes_claims=True) as scene:
        scene.upper.put("resourceclaimtemplates", template())
        group = {"metadata": {"name": "gang", "namespace": "shop"}, "spec": {"resourceClaims": [entry]}}
        if entry is not None:
            scene.upper.put(
                "podgroups", {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", **group}
            )
        scene.bind(resourceClaims=OWN, schedulingGroup={"podGroupName": "gang"})
        await asyncio.sleep(10)
        assert [reason for reason, _ in scene.events] == reasons
        assert scene.is_below() == (not reasons)


async def test_claims_come_from_the_annotation():
    """The webhook moved them out of the spec."""
    async with running(takes_claims=True) as scene:
        scene.upper.put("resourceclaimtemplates", template())
        moved = {"resourceClaims": OWN, "containers": {"main": [{"name": "gpu"}]}}
        pod = scene.bind()
        pod["metadata"]["annotations"] = {names.ANNOTATION_RESOURCE_CLAIMS: json.dumps(moved)}
        scene.upper.put("pods", pod)
        await asyncio.sleep(5)
        spec = scene.below()["spec"]
        assert spec["resourceClaims"] == OWN
        assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
        copy = scene.lower.the("resourceclaimtemplates", "shop/one")
        assert copy["spec"]["metadata"]["labels"] == {names.LABEL_GENERATED_FOR: CLUSTER}


async def test_a_changed_annotation_changes_nothing_for_a_running_pod_after_a_restart():
    """Users can change it. Its references were not counted when the pod was created, and the device is still in use."""
    upper, lower = clusters()
    upper.put("resourceclaims", claim())
    async with mirroring(Scene(upper, lower, takes_claims=True)) as scene:
        pod = scene.bind()
        pod["metadata"]["annotations"] = {
            names.ANNOTATION_RESOURCE_CLAIMS: json.dumps({"resourceClaims": SHARED})
        }
        upper.put("pods", pod)
        await asyncio.sleep(5)
        assert scene.below()["spec"]["resourceClaims"] == SHARED
    many = [{"name": f"c{number}", "resourceClaimName": f"other-{number}"} for number in range(200)]
    pod["metadata"]["annotations"] = {names.ANNOTATION_RESOURCE_CLAIMS: json.dumps({"resourceClaims": many})}
    upper.put("pods", pod)
    async with mirroring(Scene(upper, lower, takes_claims=True)) as scene:
        await asyncio.sleep(200)
        assert len(scene.dependencies._watches) == 1
        assert lower.find("resourceclaims", "shop/shared") is not None


async def test_a_recreated_upper_claim_replaces_the_copy():
    """The spec of a claim cannot be changed."""
    async with running(takes_claims=True) as scene:
        scene.upper.put("resourceclaims", claim())
        scene.bind(resourceClaims=SHARED)
        await asyncio.sleep(5)
        first = scene.lower.the("resourceclaims", "shop/shared")["metadata"]["uid"]
        scene.upper.remove("resourceclaims", "shop/shared")
        await asyncio.sleep(100)
        assert scene.lower.the("resourceclaims", "shop/shared")["metadata"]["uid"] == first, "the pod uses it"
        scene.upper.put("resourceclaims", claim(count=2))
        await asyncio.sleep(100)
        copy = scene.lower.the("resourceclaims", "shop/shared")
        assert copy["metadata"]["uid"] != first
        assert copy["spec"] == claim(count=2)["spec"]


@pytest.mark.parametrize(
    ("upper", "lower", "reason"),
    [
        (None, None, "Failed"),
        (claim(adminAccess=True), None, "ResourceClaimRefused"),
        (claim(), claim(), "DependencyConflict"),
    ],
)
async def test_a_pod_waits_for_its_claim(upper: Any, lower: Any, reason: str):
    """It is missing, it requests administrative access, or an unmanaged claim has its name."""
    async with running(takes_claims=True) as scene:
        if upper:
            scene.upper.put("resourceclaims", upper)
        if lower:
            scene.lower.put("resourceclaims", lower)
        before = scene.lower.find("resourceclaims", "shop/shared")
        scene.bind(resourceClaims=SHARED)
        await asyncio.sleep(200)
        assert not scene.is_below()
        assert [one for one, _ in scene.events] == [reason]
        assert scene.lower.find("resourceclaims", "shop/shared") == before


async def test_a_cluster_that_does_not_serve_claims_is_reported():
    """Kubernetes before 1.34; other pods are not affected."""
    async with running(takes_claims=True) as scene:
        scene.upper.fault = lambda verb, plural, _key: (
            NotFound("page not found") if plural == "resourceclaims" and verb == "list" else None
        )
        scene.bind(resourceClaims=SHARED)
        scene.bind("other", uid="u-2")
        await asyncio.sleep(100)
        assert scene.is_below("other")
        assert not scene.is_below()
        assert scene.events == [
            ("Failed", "Error: ResourceClaim shop/shared cannot be read in the upper cluster: page not found")
        ]
