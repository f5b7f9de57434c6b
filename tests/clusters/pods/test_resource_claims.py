"""Pods with ResourceClaims get devices of the lower cluster, on real control planes; kwok runs them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.resources import Resource
from hack.sandbox import Cluster, Sandbox, SandboxError
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.commands.demo import configuration
from hack.sandbox.ports import free_ports
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready

pytestmark = pytest.mark.e2e
API = "resource.k8s.io/v1"
DRIVER = "gpu.example.com"
DEVICES = 4
SHOP = "shop"
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)


def request(device_class: str = "gpu", **more: Any) -> dict[str, Any]:
    """Return the spec of a claim of one device."""
    return {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": device_class, **more}}]}}


def claim(name: str, **more: Any) -> dict[str, Any]:
    """Return a claim of one device."""
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": request(**more)}


def template(name: str) -> dict[str, Any]:
    """Return a template whose author tries to mark the generated claims as our copies."""
    marks = {"labels": {"team": "a", names.LABEL_UPPER_CLUSTER: "forged"}}
    spec = {"metadata": marks, "spec": request()}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def pod(name: str, **source: str) -> dict[str, Any]:
    """Return a labelled pod with one claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"virtual-pod": "true"}},
        "spec": {
            "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", **source}],
            "terminationGracePeriodSeconds": 1,
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """A virtual node that takes ResourceClaims, the webhook that moves them, and lower devices."""
    async with simulated(lower=1) as running:
        (lower,) = running.lower
        (node,) = (await get(lower, "", "nodes"))["items"]
        await _publish(lower, node["metadata"]["name"])
        config = configuration(running)
        config["clusters"][0]["resourceClaims"] = {"enabled": True, "deviceClasses": {"gpu": "their-gpu"}}
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        (port,) = free_ports(1)
        await running.start_process(
            "webhook",
            [
                sys.executable, "-m", "webhook", f"--kubeconfig={running.upper.kubeconfig}", f"--address={LOOPBACK}",
                f"--port={port}", "--register", f"--url=https://{LOOPBACK}:{port}", "--move-resource-claims",
            ],
        )  # fmt: skip
        await node_ready(running.upper, "vn-lower1")
        await make_namespace(running.upper, SHOP)

        async def is_moved() -> bool:
            body = json.dumps(pod("probe", resourceClaimName="any"))
            arguments = ("create", "-n", SHOP, "-f", "-", "--dry-run=server", "-o", "json")
            done = json.loads((await running.upper.kubectl(*arguments, input=body)).stdout)
            return "resourceClaims" not in done["spec"]

        await eventually(is_moved, what="the webhook moves claims")
        yield running


async def _publish(lower: Cluster, node: str) -> None:
    """Offer devices on a node, as a driver does."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    device_class = {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": "their-gpu"},
        "spec": {"selectors": [selector]},
    }
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(DEVICES)]
    piece = {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": "devices"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }
    await lower.api.create(DEVICE_CLASSES.path(), device_class)
    await lower.api.create(SLICES.path(), piece)


async def _phase(cluster: Cluster, name: str) -> str:
    return str((await get(cluster, SHOP, "pod", name))["status"]["phase"])


async def _devices(upper: Cluster, name: str) -> list[str]:
    """Return the devices that an upper pod reports."""
    annotations = (await get(upper, SHOP, "pod", name))["metadata"].get("annotations") or {}
    found = json.loads(annotations.get(names.ANNOTATION_ALLOCATED_DEVICES, "{}"))
    return [f"{one['driver']}/{one['device']}" for one in found.get("gpu", ())]


async def _lower_claims(lower: Cluster) -> list[str]:
    return sorted(one["metadata"]["name"] for one in (await get(lower, SHOP, "resourceclaims"))["items"])


async def _waiting(upper: Cluster, name: str) -> str:
    """Return the reason why a container of an upper pod waits."""
    statuses = (await get(upper, SHOP, "pod", name))["status"].get("containerStatuses") or [{}]
    return str(((statuses[0].get("state") or {}).get("waiting") or {}).get("reason", ""))


async def test_devices_are_allocated_reported_and_freed(sandbox: Sandbox):
    """Two pods share a claim and its device; two pods with a template have a device each."""
    upper, (lower,) = sandbox.upper, sandbox.lower
    await create(upper, SHOP, claim("shared"), template("one"))
    await create(
        upper,
        SHOP,
        *(pod(f"sharing-{number}", resourceClaimName="shared") for number in range(2)),
        *(pod(f"own-{number}", resourceClaimTemplateName="one") for number in range(2)),
    )
    pods = ["own-0", "own-1", "sharing-0", "sharing-1"]

    async def phases() -> list[str]:
        return [await _phase(upper, name) for name in pods]

    await becomes(phases, ["Running"] * 4, what="all pods run")

    async def devices() -> tuple[int, int, bool]:
        found = [await _devices(upper, name) for name in pods]
        return len({one for some in found for one in some}), sum(map(len, found)), found[2] == found[3]

    await becomes(devices, (3, 4, True), what="the upper pods name their devices")

    async def events() -> list[str]:
        found = (await get(upper, SHOP, "events", fields="involvedObject.name=shared"))["items"]
        return [one["reason"] for one in found]

    await becomes(events, ["DevicesAllocated"], what="the upper claim has an event")
    copy = await get(lower, SHOP, "resourceclaim", "shared")
    assert copy["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "their-gpu"
    assert not (await get(upper, SHOP, "resourceclaim", "shared")).get("status")
    generated = [
        one
        for one in (await get(lower, SHOP, "resourceclaims"))["items"]
        if one["metadata"].get("ownerReferences")
    ]
    assert [one["metadata"]["labels"].get("team") for one in generated] == ["a", "a"]
    assert not any(names.LABEL_UPPER_CLUSTER in one["metadata"]["labels"] for one in generated)
    for name in ("own-0", "own-1", "sharing-0"):
        await upper.api.delete(resources.PODS.path(namespace=SHOP, name=name))

    async def templates() -> list[str]:
        found = (await get(lower, SHOP, "resourceclaimtemplates"))["items"]
        return [one["metadata"]["name"] for one in found]

    await becomes(templates, [], what="a template's copy that no pod uses is deleted")
    assert await _lower_claims(lower) == ["shared"], "a running pod uses it"
    await upper.api.delete(resources.RESOURCE_CLAIMS.path(namespace=SHOP, name="shared"))
    await asyncio.sleep(1)
    assert await _phase(upper, "sharing-1") == "Running"
    await upper.api.delete(resources.PODS.path(namespace=SHOP, name="sharing-1"))

    async def left() -> list[str]:
        return await _lower_claims(lower)

    await becomes(left, [], what="the copy of the shared claim is deleted")


async def test_claims_of_others_and_administrative_access_are_refused(sandbox: Sandbox):
    """A claim in the lower cluster that is not ours is neither used nor changed; the lower API refuses adminAccess, too."""
    upper, (lower,) = sandbox.upper, sandbox.lower
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await upper.kubectl("patch", "namespace", SHOP, "-p", json.dumps(label))
    await create(upper, SHOP, claim("free"), pod("first", resourceClaimName="free"))

    async def phase() -> str:
        return await _phase(upper, "first")

    await becomes(phase, "Running", what="the lower namespace exists")
    await create(lower, SHOP, claim("theirs", device_class="their-gpu"))
    before = await get(lower, SHOP, "resourceclaim", "theirs")
    await create(upper, SHOP, claim("theirs"), claim("admin", adminAccess=True))
    await create(
        upper,
        SHOP,
        pod("conflict", resourceClaimName="theirs"),
        pod("admin", resourceClaimName="admin"),
        pod("none", resourceClaimName="none"),
    )

    async def reasons() -> list[str]:
        return [await _waiting(upper, name) for name in ("conflict", "admin", "none")]

    await becomes(
        reasons,
        ["DependencyConflict", "ResourceClaimRefused", "CreateContainerConfigError"],
        what="each upper pod says why it waits",
    )
    assert await get(lower, SHOP, "resourceclaim", "theirs") == before
    assert await _lower_claims(lower) == ["free", "theirs"]
    with pytest.raises(SandboxError, match="admin"):
        await create(lower, SHOP, claim("admin", device_class="their-gpu", adminAccess=True))
