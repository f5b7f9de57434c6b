"""In-place resize of a running pod, through the virtual node to a real kubelet: successes and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def resize(upper: Cluster, namespace: str, *, cpu: str) -> None:
    """Request that much for pod ``grows``."""
    change = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
    await upper.kubectl(
        "-n", namespace, "patch", "pod", "grows", "--subresource=resize", "-p", json.dumps(change)
    )


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
        pending = [one for one in found["status"]["conditions"] if one["type"] == "PodResizePending"]
        return {
            "allocated": container["allocatedResources"]["cpu"],
            "in force": container["resources"]["requests"]["cpu"],
            "pending": [one["reason"] for one in pending],
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
    await resize(upper, namespace, cpu="160m")
    await becomes(lower_request, "160m")
    settled |= {"allocated": "160m", "in force": "160m"}
    await becomes(given, settled, what="a size that fits")

    await lower.kubectl("-n", namespace, "delete", "quota", "tight")
    # More than the lower node has: a kubelet reports so in a condition.
    await resize(upper, namespace, cpu="9000")
    await becomes(given, {**settled, "pending": ["Infeasible"]}, what="the kubelet's no in the upper status")
