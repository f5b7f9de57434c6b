"""In-place resize of a running pod, through the virtual node to a real kubelet: successes and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller_runtime.apimachinery import quantity
from hack.sandbox import Cluster, Sandbox, SandboxError
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def resize(upper: Cluster, namespace: str, *, cpu: str) -> None:
    """Request that much for pod ``grows``."""
    requests = {"resources": {"requests": {"cpu": cpu}}}
    await change(upper, namespace, "grows", {"containers": [{"name": "main", **requests}]})


async def change(upper: Cluster, namespace: str, name: str, spec: dict[str, Any]) -> None:
    """Request a resize of a pod."""
    body = json.dumps({"spec": spec})
    await upper.kubectl("-n", namespace, "patch", "pod", name, "--subresource=resize", "-p", body)


def pending(found: dict[str, Any]) -> list[str]:
    """Return why a pod's resize is not applied yet."""
    return [one["reason"] for one in found["status"]["conditions"] if one["type"] == "PodResizePending"]


async def test_resize_in_place_is_mirrored(sandbox: Sandbox, upper: Cluster, namespace):
    """The lower pod is resized; the kubelet's result or reason, or a quota's refusal, is in the upper status."""
    lower = sandbox.lower[0]

    async def lower_request() -> str:
        container = (await get(lower, namespace, "pod", "grows"))["spec"]["containers"][0]
        return str(container["resources"]["requests"]["cpu"])

    async def given() -> dict[str, Any]:
        """Return values of the upper status: allocated CPU, actual CPU, and whether the generation is observed."""
        found = await get(upper, namespace, "pod", "grows")
        (container,) = found["status"]["containerStatuses"]
        return {
            "allocated": container["allocatedResources"]["cpu"],
            "in force": container["resources"]["requests"]["cpu"],
            "pending": pending(found),
            "observed": found["status"]["observedGeneration"] == found["metadata"]["generation"],
        }

    requests = {"resources": {"requests": {"cpu": "100m"}}}
    await create(upper, namespace, pod("grows", "sleep 3600", container=requests))
    await ready(upper, namespace, "grows")
    await resize(upper, namespace, cpu="150m")
    await becomes(lower_request, "150m")
    settled = {"allocated": "150m", "in force": "150m", "pending": [], "observed": True}
    await becomes(given, settled, what="the new size in the upper status")

    await lower.kubectl("-n", namespace, "create", "quota", "tight", "--hard=requests.cpu=200m")

    async def counted() -> bool:
        quota = await get(lower, namespace, "resourcequota", "tight")
        return "requests.cpu" in (quota.get("status") or {}).get("used", {})

    await eventually(counted, what="the quota counts")
    await resize(upper, namespace, cpu="300m")

    async def is_reported() -> bool:
        found = (await get(upper, namespace, "events", fields="involvedObject.name=grows"))["items"]
        return any(one["reason"] == "UpdateRefused" and "quota: tight" in one["message"] for one in found)

    await eventually(is_reported, what="an event names the quota")
    deferred = {**settled, "pending": ["Deferred"], "observed": False}
    await becomes(given, deferred, what="the quota's refusal in the upper status")
    await resize(upper, namespace, cpu="160m")
    await becomes(lower_request, "160m")
    settled |= {"allocated": "160m", "in force": "160m"}
    await becomes(given, settled, what="a size that fits")

    await lower.kubectl("-n", namespace, "delete", "quota", "tight")
    with pytest.raises(SandboxError, match="didn't have enough allocatable"):
        await resize(upper, namespace, cpu="9000")  # more than the virtual node has


async def test_pod_level_resources_are_resized(sandbox: Sandbox, upper: Cluster, namespace):
    """The virtual node declares the feature, without which the upper API server refuses; the status is the kubelet's."""
    lower = sandbox.lower[0]
    cpu = {"resources": {"requests": {"cpu": "100m"}}}
    await create(upper, namespace, pod("whole", "sleep 3600", resources=cpu["resources"]))
    await ready(upper, namespace, "whole")
    await change(upper, namespace, "whole", {"resources": {"requests": {"cpu": "150m"}}})

    async def requested() -> str:
        return str((await get(lower, namespace, "pod", "whole"))["spec"]["resources"]["requests"]["cpu"])

    async def given() -> tuple[Any, ...]:
        above, below = [(await get(one, namespace, "pod", "whole"))["status"] for one in (upper, lower)]
        same = [above[field] == below[field] for field in ("allocatedResources", "resources")]
        return above["allocatedResources"]["cpu"], same

    await becomes(requested, "150m", what="the new size of the lower pod")
    await becomes(given, ("150m", [True, True]), what="the kubelet's values in the upper status")


async def test_an_init_container_is_resized_while_it_runs(upper: Cluster, namespace):
    """The virtual node declares this feature, too."""
    init = {"name": "first", "image": "busybox:1.36", "command": ["sleep", "3600"]}
    small = {"resources": {"requests": {"cpu": "50m"}}}
    await create(upper, namespace, pod("starts", "sleep 3600", initContainers=[{**init, **small}]))

    async def allocated() -> str:
        (status,) = (await get(upper, namespace, "pod", "starts"))["status"]["initContainerStatuses"]
        return str(status["allocatedResources"]["cpu"]) if "running" in status["state"] else ""

    await becomes(allocated, "50m", what="the running init container")
    larger = {"resources": {"requests": {"cpu": "70m"}}}
    await change(upper, namespace, "starts", {"initContainers": [{"name": "first", **larger}]})
    await becomes(allocated, "70m", what="its new size")


async def test_a_resize_waits_for_room(sandbox: Sandbox, upper: Cluster, namespace):
    """The kubelet defers it, and applies it when another pod has gone."""
    (node,) = (await get(sandbox.lower[0], "", "nodes"))["items"]
    half = quantity.milli(node["status"]["allocatable"]["cpu"]) // 2

    def requests(cpu: int) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": f"{cpu}m"}}}

    await create(upper, namespace, pod("other", "sleep 3600", container=requests(half)))
    await create(upper, namespace, pod("grows", "sleep 3600", container=requests(50)))
    for name in ("other", "grows"):
        await ready(upper, namespace, name)
    await resize(upper, namespace, cpu=f"{half + 100}m")

    async def given() -> tuple[list[str], int]:
        found = await get(upper, namespace, "pod", "grows")
        (status,) = found["status"]["containerStatuses"]
        return pending(found), quantity.milli(status["allocatedResources"]["cpu"])

    await becomes(given, (["Deferred"], 50), what="a deferred resize in the upper status")
    await upper.kubectl("-n", namespace, "delete", "pod", "other", "--grace-period=1")
    await becomes(given, ([], half + 100), what="the new size once there is room")
