"""Endpoints that others add to the lower copy of a Service."""

from __future__ import annotations

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, make_namespace
from tests.workloads import manifest, service

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
ADDRESSES = [{"addresses": [{"ip": "10.9.9.9"}], "ports": [{"port": 80}]}]


async def test_foreign_endpoints_of_a_service_are_reported(sandbox: Sandbox, upper: Cluster, namespace):
    """The event of the upper Service names an older Endpoints object and a later slice, and neither is changed."""
    lower = sandbox.lower[1]
    await make_namespace(lower, namespace)
    await lower.apply(manifest("Endpoints", "web", metadata={"namespace": namespace}, subsets=ADDRESSES))
    await create(upper, namespace, service({"port": 80}), pod("web", "true", node=SIMULATED))

    async def messages() -> str:
        found = await get(upper, namespace, "events", fields="reason=ForeignEndpoints")
        return " ".join(one["message"] for one in found["items"])

    async def names_endpoints() -> bool:
        return "delete Endpoints web, or rename the Service" in await messages()

    await eventually(names_endpoints, what="the event names the Endpoints object")
    stray = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "stray",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.8"]}],
        "ports": [{"port": 80}],
    }
    await lower.apply(stray)

    async def names_both() -> bool:
        return "delete EndpointSlice stray, Endpoints web" in await messages()

    await eventually(names_both, what="the event names the slice, too")
    there = await lower.kubectl(
        "-n", namespace, "get", "endpoints", "web", "-o", "jsonpath={.subsets[*].addresses[*].ip}"
    )
    assert there.stdout == "10.9.9.9"
    labels = "kubernetes.io/service-name=web"

    async def count() -> int:
        return len((await get(lower, namespace, "endpointslices", labels=labels))["items"])

    await becomes(count, 3, what="our slice, the mirrored one and the stray one")
