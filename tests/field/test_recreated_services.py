"""Services of one name that are deleted and created again with another type, and ports that differ in protocol only."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, get, ready
from tests.workloads import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def test_ports_of_one_number_and_recreation_with_another_type(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """A strategic merge patch would merge ports of the same number; type and address are immutable."""
    lower = sandbox.lower[1]
    ports = [
        {"containerPort": 8080, "name": "tcp"},
        {"containerPort": 8080, "name": "udp", "protocol": "UDP"},
    ]
    port = {"name": "t", "port": 53, "targetPort": "tcp"}
    await create(
        upper,
        namespace,
        manifest("Service", "web", spec={"selector": {"app": "web"}, "ports": [port]}),
        pod("web", "", node=SIMULATED, container={"ports": ports}),
    )
    await ready(upper, namespace, "web")

    async def below() -> dict[str, Any]:
        spec = (await get(lower, namespace, "service", "web"))["spec"]
        seen = [[one.get("name"), one["port"], one["protocol"]] for one in spec.get("ports", [])]
        return {"type": spec["type"], "headless": spec.get("clusterIP") == "None", "ports": seen}

    async def endpoints() -> list[Any]:
        label = "kubernetes.io/service-name=web"
        slices = (await get(lower, namespace, "endpointslices", labels=label))["items"]
        return sorted([one["name"], one["port"], one["protocol"]] for each in slices for one in each["ports"])

    async def change(*operations: dict[str, Any]) -> None:
        arguments = ("patch", "service", "web", "--type=json", "-p", json.dumps(operations))
        await upper.kubectl("-n", namespace, *arguments)

    both: dict[str, Any] = {"type": "ClusterIP", "headless": False}
    second = {"name": "u", "port": 53, "protocol": "UDP", "targetPort": "udp"}
    await becomes(below, {**both, "ports": [["t", 53, "TCP"]]}, what="the Service")
    await change({"op": "add", "path": "/spec/ports/-", "value": second})
    await becomes(below, {**both, "ports": [["t", 53, "TCP"], ["u", 53, "UDP"]]}, what="both ports")
    await becomes(endpoints, [["t", 8080, "TCP"], ["u", 8080, "UDP"]], what="endpoints of both ports")
    await change({"op": "remove", "path": "/spec/ports/0"})
    await becomes(below, {**both, "ports": [["u", 53, "UDP"]]}, what="one port is removed")
    for spec, wanted in (
        ({"type": "ExternalName", "externalName": "example.com"}, ["ExternalName", False, []]),
        (
            {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 1}]},
            ["ClusterIP", True, [[None, 1, "TCP"]]],
        ),
        ({"selector": {"app": "web"}, "ports": [{"port": 2}]}, ["ClusterIP", False, [[None, 2, "TCP"]]]),
    ):
        await upper.kubectl("-n", namespace, "delete", "service", "web")
        await create(upper, namespace, manifest("Service", "web", spec=spec))
        await becomes(
            below, dict(zip(("type", "headless", "ports"), wanted, strict=True)), what=f"the Service {spec}"
        )
    await becomes(endpoints, [["", 2, "TCP"]], what="the endpoints of the last Service")
