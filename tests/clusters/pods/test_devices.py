"""A real kubelet prepares devices for pods with ResourceClaims, by a driver without real devices."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.resources import Resource
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds import binaries
from hack.sandbox.process import Process
from tests.clusters.virtual_nodes import REAL, pod
from tests.waiting import becomes, create, eventually, get, ready

pytestmark = [pytest.mark.e2e]
API = "resource.k8s.io/v1"
DRIVER = "fake.example.com"
NODE = "lower1-node"
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
TAINT_RULES = Resource("resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False)
CLAIM = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": DRIVER}}]}}


def _calls(driver: Process) -> list[list[str]]:
    return [line.split() for line in driver.log.read_text(encoding="utf-8").splitlines()]


@pytest_asyncio.fixture(loop_scope="session")
async def driver(sandbox: Sandbox) -> AsyncIterator[Process]:
    """Register the driver with the kubelet of the real node; it offers two devices."""
    lower = sandbox.lower[0]
    program = (await binaries.ensure(["dra-driver"]))["dra-driver"]
    kubelet = lower.directory / "node" / "kubelet"
    process = await sandbox.start_process("dra-driver", [program, f"--name={DRIVER}", f"--kubelet={kubelet}"])

    async def is_registered() -> bool:
        return ["registered", "true"] in _calls(process)

    await eventually(is_registered, what="the kubelet knows the driver")
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"device-{number}"} for number in range(2)]
    made = {
        DEVICE_CLASSES: {"selectors": [selector]},
        SLICES: {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices},
    }
    for resource, spec in made.items():
        body = {"apiVersion": API, "kind": resource.kind, "metadata": {"name": DRIVER}, "spec": spec}
        await lower.api.create(resource.path(), body)
    yield process
    for resource in made:
        await lower.api.delete(resource.path(name=DRIVER))
    await process.stop()


def _claiming(name: str, **source: str) -> dict[str, Any]:
    """Return a pod with a device."""
    claimed = {"resources": {"claims": [{"name": "device"}]}}
    return pod(name, "sleep 3600", container=claimed, resourceClaims=[{"name": "device", **source}])


async def _device(upper: Cluster, namespace: str, name: str) -> str:
    """Return the device that the upper pod reports."""
    annotations = (await get(upper, namespace, "pod", name))["metadata"]["annotations"]
    (found,) = json.loads(annotations[names.ANNOTATION_ALLOCATED_DEVICES])["device"]
    return str(found["device"])


async def test_a_kubelet_prepares_and_frees_devices(sandbox: Sandbox, driver: Process, namespace: str):
    """The pods have their node already, so no webhook moves the claims, and no upper scheduler allocates them."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    await create(
        upper,
        namespace,
        {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": "shared"}, "spec": CLAIM},
        {
            "apiVersion": API,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "own"},
            "spec": {"spec": CLAIM},
        },
    )
    sources = {"own": {"resourceClaimTemplateName": "own"}, "shared": {"resourceClaimName": "shared"}}
    pods = [_claiming(name, **source) for name, source in sources.items()]
    for one in pods:
        one["spec"]["nodeName"] = REAL
    await create(upper, namespace, *pods)
    for name in sources:
        await ready(upper, namespace, name)

    async def devices() -> set[str]:
        return {await _device(upper, namespace, name) for name in sources}

    await becomes(devices, {"device-0", "device-1"}, what="the upper pods name their devices")
    prepared = {call[1] for call in _calls(driver) if call[0] == "prepare"}
    assert f"{namespace}/shared" in prepared
    assert len(prepared) == 2
    for name in sources:
        await upper.api.delete(resources.PODS.path(namespace=namespace, name=name))

    async def freed() -> bool:
        return {call[1] for call in _calls(driver) if call[0] == "unprepare"} == prepared

    await eventually(freed, what="the kubelet has freed the devices")

    async def left() -> list[str]:
        return [one["metadata"]["name"] for one in (await get(lower, namespace, "resourceclaims"))["items"]]

    await becomes(left, [], what="no claim is left in the lower cluster")


async def test_a_device_taint_of_the_lower_cluster_ends_the_upper_pod(
    sandbox: Sandbox, driver: Process, namespace: str
):
    """The lower cluster evicts the pod of a tainted device, and the upper pod says why."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    template = {
        "apiVersion": API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "own"},
        "spec": {"spec": CLAIM},
    }
    claiming = _claiming("tainted", resourceClaimTemplateName="own")
    claiming["spec"]["nodeName"] = REAL
    await create(upper, namespace, template, claiming)
    await ready(upper, namespace, "tainted")
    device = await _device(upper, namespace, "tainted")
    selector = {"driver": DRIVER, "pool": NODE, "device": device}
    taint = {"key": "example.com/broken", "effect": "NoExecute"}
    rule = {"metadata": {"name": namespace}, "spec": {"deviceSelector": selector, "taint": taint}}
    await lower.api.create(TAINT_RULES.path(), {"apiVersion": API, "kind": "DeviceTaintRule", **rule})
    try:

        async def ended() -> tuple[Any, ...]:
            status = (await get(upper, namespace, "pod", "tainted"))["status"]
            conditions = {one["type"]: one.get("reason") for one in status.get("conditions") or ()}
            return status.get("phase"), conditions.get("DisruptionTarget")

        await becomes(ended, ("Failed", "DeletionByDeviceTaintManager"), what="the upper pod has ended")
    finally:
        await lower.api.delete(TAINT_RULES.path(name=namespace))


async def test_an_extended_resource_of_a_lower_device_class_is_allocated(
    sandbox: Sandbox, driver: Process, namespace: str
):
    """The lower scheduler makes a claim, which stays in the lower cluster."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    resource = f"deviceclass.resource.kubernetes.io/{DRIVER}"
    requesting = pod("extended", "sleep 3600", container={"resources": {"limits": {resource: "1"}}})
    requesting["spec"]["nodeName"] = REAL
    await create(upper, namespace, requesting)
    await ready(upper, namespace, "extended")
    status = (await get(lower, namespace, "pod", "extended"))["status"]
    claim = status["extendedResourceClaimStatus"]["resourceClaimName"]
    assert ["prepare", f"{namespace}/{claim}"] == next(
        call[:2] for call in _calls(driver) if call[0] == "prepare" and call[1].endswith(claim)
    )
    assert "extendedResourceClaimStatus" not in (await get(upper, namespace, "pod", "extended"))["status"]
    await upper.api.delete(resources.PODS.path(namespace=namespace, name="extended"))

    async def left() -> list[str]:
        return [one["metadata"]["name"] for one in (await get(lower, namespace, "resourceclaims"))["items"]]

    await becomes(left, [], what="no claim is left in the lower cluster")
