"""A drain of pods with evictionResponders. The API is off by default, so the upper cluster is an own one.

Kubernetes 1.37 has no evictionrequest-controller, so the test reports in its place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from tests.accounts import install_account
from tests.clusters.descheduler.setup import LARGE, SMALL, command, deployment, descheduler, pods_of, run_on
from tests.waiting import becomes, create, eventually, get, node_ready

_API = "--runtime-config=lifecycle.k8s.io/v1alpha1=true"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox() -> AsyncIterator[Sandbox]:
    """The clusters, a virtual-node process, and the account of the descheduler."""
    async with Sandbox(
        kwok_nodes=1, upper_features=["EvictionRequestAPI"], upper_apiserver_args=[_API]
    ) as running:
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(running)), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for node in (SMALL, LARGE):
            await node_ready(running.upper, node)
        await install_account(running, "descheduler", virtualNodes=[SMALL, LARGE])
        yield running


def _responding(name: str) -> dict[str, Any]:
    body = deployment(name, replicas=1, cpu="100m")
    body["spec"]["template"]["spec"]["evictionResponders"] = [
        {"name": "acme.example/mover", "priority": 10000}
    ]
    return body


async def _report(upper: Cluster, namespace: str, request: str, **status: Any) -> None:
    change = json.dumps({"status": {"observedGeneration": 1, **status}})
    await upper.kubectl(
        "-n", namespace, "patch", "evictionrequest", request, "--subresource=status", "--type=merge", "-p", change
    )  # fmt: skip


async def test_pods_leave_when_responders_have_evicted_them_or_failed(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """The default responder evicts one upper pod, and the descheduler the other; lower pods have no responders."""
    await create(upper, namespace, _responding("moved"), _responding("failed"))
    await run_on(upper, namespace, SMALL, count=2)
    lower = await pods_of(sandbox.lower[0], namespace)
    assert len(lower) == 2
    assert not any("evictionResponders" in pod["spec"] for pod in lower)
    old = {
        pod["metadata"]["labels"]["app"]: pod["metadata"]["name"] for pod in await pods_of(upper, namespace)
    }

    async def requests() -> dict[str, str]:
        items = (await get(upper, namespace, "evictionrequests"))["items"]
        return {item["spec"]["target"]["pod"]["name"]: item["metadata"]["name"] for item in items}

    async def requested() -> set[str]:
        return set(await requests())

    async def left() -> set[str]:
        return {pod["metadata"]["name"] for pod in await pods_of(upper, namespace)} & set(old.values())

    async def leads() -> bool:
        items = (await get(upper, namespace, "leases"))["items"]
        return any(item["spec"].get("holderIdentity") for item in items)

    async with descheduler(sandbox, namespace):
        await eventually(leads, what="the descheduler leads")
        task = asyncio.create_task(command(upper, "drain", SMALL, "--timeout=120s"))
        await becomes(requested, set(old.values()), what="the evictions are requested")
        found = await requests()
        for name in found.values():
            await _report(upper, namespace, name)
        await asyncio.sleep(6)
        assert await left() == set(old.values())
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": old["moved"], "namespace": namespace},
        }
        await upper.api.create(f"/api/v1/namespaces/{namespace}/pods/{old['moved']}/eviction", eviction)
        failed = {
            "type": "Failed",
            "status": "True",
            "reason": "NoResponder",
            "message": "no responder is left",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await _report(upper, namespace, found[old["failed"]], conditions=[failed])
        code, text = await task
        assert code == 0, text
        await run_on(upper, namespace, LARGE, count=2)
    await becomes(requested, set(), what="the requests are deleted with their pods")
    await upper.kubectl("uncordon", SMALL)

    async def is_empty() -> bool:
        return not await pods_of(sandbox.lower[0], namespace)

    await eventually(is_empty, what="no lower pod is left in the drained cluster")
