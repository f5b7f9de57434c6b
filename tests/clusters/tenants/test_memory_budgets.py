"""A lower cluster or an upper namespace with too many objects stops itself only, on real API servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, get, make_namespace, node_ready, ready

pytestmark = pytest.mark.e2e
_MIB = 1024**2


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Two lower clusters: 2 MiB of objects of the first are cached; 2 MiB of each upper namespace."""
    async with simulated() as sandbox:
        settings = configuration(sandbox)
        settings["clusters"][0]["cacheBytes"] = 2 * _MIB
        settings["limits"] = {"cacheBytesPerNamespace": 2 * _MIB}
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")
        await sandbox.start_virtual_node(f"--config={file}")
        for name in ("vn-lower1", "vn-lower2"):
            await node_ready(sandbox.upper, name)
        await make_namespace(sandbox.upper, "quiet")
        yield sandbox


def pod(name: str, node: str, **metadata: Any) -> dict[str, Any]:
    """Return a pod that is bound to a virtual node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]},
    }


async def reasons(upper: Cluster, namespace: str, name: str) -> set[str]:
    """Return the reasons of the events about an object."""
    found = await get(upper, namespace, "events", fields=f"involvedObject.name={name}")
    return {event["reason"] for event in found["items"]}


async def test_large_namespace_keeps_its_own_pods_waiting(sandbox: Sandbox):
    """Services of 4 MB keep pods of their namespace waiting, with an event; when they are deleted, the pod starts."""
    upper = sandbox.upper
    await make_namespace(upper, "noisy")
    ports = [
        {"name": f"port-{number:06}-{'x' * 50}"[:60].rstrip("-"), "port": number + 1}
        for number in range(5000)
    ]
    for number in range(6):
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"s{number}", "annotations": {"text": "x" * 200_000}},
            "spec": {"clusterIP": "None", "ports": ports},
        }
        await create(upper, "noisy", service)
    await create(upper, "noisy", pod("waits", "vn-lower2"))
    await create(upper, "quiet", pod("runs", "vn-lower2"))
    await ready(upper, "quiet", "runs")

    async def waits() -> bool:
        return "NamespaceTooLarge" in await reasons(upper, "noisy", "waits")

    await becomes(waits, True, what="an event names the limit")
    assert (await get(upper, "noisy", "pod", "waits"))["status"]["phase"] == "Pending"
    await upper.kubectl("-n", "noisy", "delete", "services", "--all")
    await upper.kubectl("-n", "noisy", "wait", "--for=condition=Ready", "pod/waits", "--timeout=150s")


async def test_large_pods_wait_and_small_pods_of_other_namespaces_run(sandbox: Sandbox):
    """Pods of 250 KB that exceed the limit of their namespace wait; they can be deleted."""
    upper = sandbox.upper
    await make_namespace(upper, "fat")
    for number in range(12):
        await create(upper, "fat", pod(f"fat-{number}", "vn-lower2", annotations={"text": "x" * 250_000}))

    async def waiting() -> int:
        found = [await reasons(upper, "fat", f"fat-{number}") for number in range(12)]
        return sum("NamespaceTooLarge" in names for names in found)

    async def some_wait() -> bool:
        return 3 <= await waiting() <= 6

    await becomes(some_wait, True, what="pods beyond 2 MiB wait")
    await create(upper, "quiet", pod("beside", "vn-lower2"))
    await ready(upper, "quiet", "beside")
    await upper.kubectl("-n", "fat", "delete", "pods", "--all", "--grace-period=1", "--timeout=60s")
    assert (await get(upper, "fat", "pods"))["items"] == []


async def test_a_running_pod_that_grows_beyond_the_limit_is_deleted_while_there_is_no_room(sandbox: Sandbox):
    upper = sandbox.upper
    await make_namespace(upper, "grown")
    await create(upper, "grown", pod("grows", "vn-lower2"))
    await ready(upper, "grown", "grows")
    for number in range(12):
        await create(upper, "grown", pod(f"fat-{number}", "vn-lower2", annotations={"text": "x" * 250_000}))

    async def is_full() -> bool:
        return "NamespaceTooLarge" in await reasons(upper, "grown", "fat-11")

    await becomes(is_full, True, what="the namespace has no room")
    patch = sandbox.directory / "patch.json"
    patch.write_text(json.dumps({"metadata": {"annotations": {"text": "x" * 250_000}}}), encoding="utf-8")
    await upper.kubectl("-n", "grown", "patch", "pod", "grows", f"--patch-file={patch}")
    await upper.kubectl("-n", "grown", "delete", "pod", "grows", "--grace-period=1", "--timeout=25s")


async def test_too_large_lower_cluster_stops_alone_and_returns(sandbox: Sandbox):
    """Its Node gets a condition and an event; pods of the other cluster start; with a higher limit, it returns."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    await create(upper, "quiet", pod("first", "vn-lower1"))
    await ready(upper, "quiet", "first")
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"large-{number}", "annotations": {"text": "x" * 250_000}},
        }
        for number in range(12)
    ]
    for node in nodes:
        await lower.api.create("/api/v1/nodes", node)

    async def conditions() -> dict[str, str]:
        node = await get(upper, "", "node", "vn-lower1")
        return {one["type"]: one["status"] for one in node["status"]["conditions"]}

    async def is_too_large() -> str:
        return (await conditions()).get("LowerClusterTooLarge", "")

    await becomes(is_too_large, "True", what="a condition says that the cluster is too large")
    assert (await conditions())["Ready"] != "True"
    assert "LowerClusterTooLarge" in await reasons(upper, "default", "vn-lower1")
    await create(upper, "quiet", pod("second", "vn-lower2"))
    await ready(upper, "quiet", "second")
    await node_ready(upper, "vn-lower2")
    file = sandbox.directory / "virtual-node.yaml"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["clusters"][0]["cacheBytes"] = 64 * _MIB
    file.write_text(json.dumps(settings), encoding="utf-8")
    await node_ready(upper, "vn-lower1")
    assert (await conditions())["LowerClusterTooLarge"] == "False"
    await create(upper, "quiet", pod("third", "vn-lower1"))
    await ready(upper, "quiet", "third")
