"""A tenant with the built-in role ``edit`` tries to get rights on lower nodes; the policy of the lower cluster refuses."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, make_namespace, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
PRIVILEGED = {"securityContext": {"privileged": True}}
SELECTING = {"nodeSelector": {CONTROL_PLANE: ""}, "tolerations": [{"operator": "Exists"}]}
TOLERATING = {"tolerations": [{"key": CONTROL_PLANE, "operator": "Exists"}]}


def _annotated(name: str, **annotations: str) -> dict[str, Any]:
    return pod(name, "sleep 3600", metadata={"annotations": annotations})


ATTACKS: list[tuple[str, dict[str, Any]]] = [
    ("privileged", pod("privileged", "sleep 3600", container=PRIVILEGED)),
    ("hostNamespaces", pod("host-network", "sleep 3600", hostNetwork=True)),
    ("hostPaths", pod("host-path", "sleep 3600", volumes=[{"name": "root", "hostPath": {"path": "/"}}])),
    ("csiDrivers", pod("inline", "sleep 3600", volumes=[{"name": "v", "csi": {"driver": "d.example.com"}}])),
    ("controlPlane", _annotated("selecting", clusterSelector=json.dumps(SELECTING))),
    ("controlPlane", _annotated("tolerating", clusterSelector=json.dumps(TOLERATING))),
    ("schedulerNames", _annotated("scheduler", **{"virtual-node.io/scheduler-name": "bypass"})),
    (
        "annotations",
        _annotated("devices", **{"devices.nri.io/pod": "[{path: /dev/sda, type: b, major: 8, minor: 0}]"}),
    ),
    ("labels", pod("cloud-role", "sleep 3600", metadata={"labels": {"aadpodidbinding": "admin"}})),
    ("priorityClasses", pod("critical", "sleep 3600", priorityClassName="system-node-critical")),
]
"""Attack → the rule that refuses it."""


class _Tenant:
    """A ServiceAccount whose only right is ``edit`` in one namespace."""

    def __init__(self, upper: Cluster, namespace: str) -> None:
        self.namespace = namespace
        self._upper = upper

    async def kubectl(self, *arguments: str, body: dict[str, Any] | None = None) -> str:
        """Run kubectl as the tenant."""
        done = await self._upper.kubectl(
            "--namespace", self.namespace, "--as", f"system:serviceaccount:{self.namespace}:tenant", *arguments,
            input=None if body is None else json.dumps(body),
        )  # fmt: skip
        return done.stdout

    async def create(self, body: dict[str, Any]) -> None:
        """Create a pod as the tenant."""
        await self.kubectl("create", "--filename", "-", body=body)

    async def add_debugger(self, name: str, target: str, context: dict[str, Any]) -> None:
        """Add a debug container to a pod, as ``kubectl debug --profile`` does."""
        there = await get(self._upper, self.namespace, "pod", target)
        container = {
            "name": name,
            "image": "busybox:1.36",
            "command": ["sleep", "3600"],
            "securityContext": context,
        }
        all_of_them = [*there["spec"].get("ephemeralContainers", ()), container]
        patch = json.dumps({"spec": {"ephemeralContainers": all_of_them}})
        await self.kubectl("patch", "pod", target, "--subresource=ephemeralcontainers", "--patch", patch)


async def _tenant(upper: Cluster, namespace: str) -> _Tenant:
    role = ["create", "role", "debugger", "--verb=get,patch", "--resource=pods/ephemeralcontainers"]
    account = f"--serviceaccount={namespace}:tenant"
    for arguments in (
        ["create", "serviceaccount", "tenant"],
        ["create", "rolebinding", "tenant", "--clusterrole=edit", account],
        role,
        ["create", "rolebinding", "debugger", "--role=debugger", account],
    ):
        await upper.kubectl("--namespace", namespace, *arguments)
    return _Tenant(upper, namespace)


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(upper: Cluster, namespace: str) -> _Tenant:
    """A tenant of a namespace without rules of its own."""
    return await _tenant(upper, namespace)


@pytest_asyncio.fixture(loop_scope="session")
async def trusted(upper: Cluster) -> AsyncIterator[_Tenant]:
    """A tenant of a namespace that the configuration trusts."""
    name = f"trusted-{secrets.token_hex(4)}"
    await make_namespace(upper, name)
    yield await _tenant(upper, name)
    await upper.api.delete(f"/api/v1/namespaces/{name}")


async def test_refuses_pods_that_request_the_node_with_a_reason(
    sandbox: Sandbox, upper: Cluster, tenant: _Tenant
):
    """Each with an event and a condition that name rule, limit and setting; an ordinary pod runs."""
    for body in (*(body for _, body in ATTACKS), pod("ordinary", "sleep 3600")):
        await tenant.create(body)
    await ready(upper, tenant.namespace, "ordinary")

    async def reported() -> dict[str, bool]:
        found_reasons = {}
        for rule, body in ATTACKS:
            name = body["metadata"]["name"]
            status = (await get(upper, tenant.namespace, "pod", name))["status"]
            condition = next(one for one in status["conditions"] if one["type"] == "virtual-node.io/Admitted")
            events = await upper.kubectl(
                *(
                    "--namespace",
                    tenant.namespace,
                    "get",
                    "events",
                    "--output",
                    "jsonpath={.items[*].message}",
                ),
                f"--field-selector=involvedObject.name={name},reason=NotMirrored",
            )
            found_reasons[name] = all(
                f": {rule}: " in text
                and "clusters[lower1].policy" in text
                and ("allowed: " in text or "denied by pattern " in text)
                for text in (condition["message"], events.stdout)
            )
        return found_reasons

    await becomes(
        reported,
        {body["metadata"]["name"]: True for _, body in ATTACKS},
        what="all of them are refused by their rule",
    )
    lower_pods = (await get(sandbox.lower[0], tenant.namespace, "pods"))["items"]
    assert [one["metadata"]["name"] for one in lower_pods] == ["ordinary"]


async def test_refuses_a_privileged_debug_container_of_a_running_pod(
    sandbox: Sandbox, upper: Cluster, tenant: _Tenant
):
    """An ordinary one is still accepted afterwards."""
    await tenant.create(pod("web", "sleep 3600"))
    await ready(upper, tenant.namespace, "web")
    await tenant.add_debugger("root", "web", {"privileged": True})

    async def refused() -> bool:
        done = await upper.kubectl(
            *("--namespace", tenant.namespace, "get", "events", "--field-selector=reason=UpdateRefused"),
            *("--output", "jsonpath={.items[*].message}"),
        )
        return "privileged: spec.ephemeralContainers[root].securityContext.privileged" in done.stdout

    await eventually(refused, what="the event names rule and container")
    await tenant.add_debugger("plain", "web", {})

    async def debuggers() -> list[str]:
        lower = await get(sandbox.lower[0], tenant.namespace, "pod", "web")
        return [one["name"] for one in lower["spec"].get("ephemeralContainers", ())]

    await becomes(debuggers, ["plain"], what="the ordinary debug container is there, the other is not")


async def test_trusted_namespace_gets_its_privileged_pod(sandbox: Sandbox, upper: Cluster, trusted: _Tenant):
    """Control-plane nodes and system classes need rules of their own even there."""
    await trusted.create(pod("root", "sleep 3600", hostPID=True, container=PRIVILEGED))
    await trusted.create(pod("critical", "sleep 3600", priorityClassName="system-cluster-critical"))
    await ready(upper, trusted.namespace, "root")
    lower = await get(sandbox.lower[0], trusted.namespace, "pod", "root")
    assert lower["spec"]["containers"][0]["securityContext"]["privileged"] is True

    async def refused() -> bool:
        status = (await get(upper, trusted.namespace, "pod", "critical"))["status"]
        return any("priorityClasses: " in one.get("message", "") for one in status["conditions"])

    await eventually(refused, what="the class is refused")


async def test_pods_that_tolerate_everything_do_not_run_on_control_plane_nodes(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    lower = sandbox.lower[1]
    nodes = [one["metadata"]["name"] for one in (await get(lower, "", "nodes"))["items"]]
    await lower.kubectl("label", "node", nodes[0], f"{CONTROL_PLANE}=")
    await lower.kubectl("taint", "node", nodes[0], f"{CONTROL_PLANE}:NoSchedule")
    try:
        pods = [f"web-{number}" for number in range(6)]
        for name in pods:
            await create(
                upper,
                namespace,
                pod(name, "sleep 3600", node=SIMULATED, tolerations=[{"operator": "Exists"}]),
            )

        async def hosts() -> list[str]:
            found = (await get(lower, namespace, "pods"))["items"]
            return sorted(one["spec"].get("nodeName", "") for one in found)

        await becomes(hosts, [nodes[1]] * len(pods), what="all are on the worker node")
    finally:
        await lower.kubectl("taint", "node", nodes[0], f"{CONTROL_PLANE}-")
        await lower.kubectl("label", "node", nodes[0], f"{CONTROL_PLANE}-")
