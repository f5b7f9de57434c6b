"""Requests of clients through a Service while control planes, a kubelet and the virtual node are restarted.

The server's pods run in one lower cluster; one client runs beside them, the other in a second lower cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from tests.clusters.services.client_loop import REPLICAS, count, run_on, start_client, web
from tests.clusters.services.far_cluster import FAR, far_cluster
from tests.clusters.virtual_nodes import REAL
from tests.waiting import becomes, create, get, node_ready, own_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

Served = tuple[str, dict[str, Cluster]]
"""The namespace of the Service; each client and the lower cluster in which it runs."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(sandbox: Sandbox) -> AsyncIterator[Served]:
    """The Service and both clients."""
    upper, near = sandbox.upper, sandbox.lower[0]
    async with far_cluster(sandbox) as other, own_namespace(upper, near, other.lower[0]) as namespace:
        await create(upper, namespace, *web(nodeSelector={"kubernetes.io/hostname": REAL}))
        await run_on(upper, namespace, REAL)
        await start_client(upper, namespace, "near", node=REAL)
        await start_client(upper, namespace, "far", node=FAR)
        yield namespace, {"near": near, "far": other.lower[0]}


@contextlib.asynccontextmanager
async def _no_request_fails(upper: Cluster, served: Served) -> AsyncIterator[None]:
    """Compare the failed requests of both clients with 0 after the context, and after further requests."""
    namespace, clients = served
    before = {name: await count(cluster, namespace, name, above=0) for name, cluster in clients.items()}
    assert {bad for _, bad in before.values()} == {0}
    yield
    await node_ready(upper, REAL)
    for cluster in (upper, *clients.values()):

        async def endpoints(cluster: Cluster = cluster) -> int:
            slices = await get(cluster, namespace, "endpointslices", labels="kubernetes.io/service-name=web")
            found = [one for item in slices["items"] for one in item["endpoints"] or ()]
            return sum(bool(one["conditions"].get("ready")) for one in found)

        await becomes(endpoints, REPLICAS, what=f"{cluster.name}: all endpoints are ready")
    await run_on(upper, namespace, REAL)
    failed = {}
    for name, cluster in clients.items():
        _, failed[name] = await count(cluster, namespace, name, above=before[name][0] + 50)
    assert failed == dict.fromkeys(clients, 0)


async def test_lower_api_server_is_restarted(sandbox: Sandbox, served: Served):
    """The outage lasts until the virtual node is not Ready."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    async with _no_request_fails(upper, served):
        # With leader election it would end, too. Without, it would mark the nodes whose leases have expired.
        await lower.controller_manager.stop()
        await lower.apiserver.stop()
        try:

            async def reason() -> str:
                conditions = (await get(upper, "", "node", REAL))["status"]["conditions"]
                return str(next(one["reason"] for one in conditions if one["type"] == "Ready"))

            await becomes(reason, "LowerClusterUnreachable", what="the virtual node is not Ready")
        finally:
            await lower.restore()
            await lower.controller_manager.start()


async def test_lower_kubelet_is_restarted(sandbox: Sandbox, served: Served):
    """Requests are counted through the kubelet, so it serves again afterwards."""
    assert sandbox.real_node is not None
    async with _no_request_fails(sandbox.upper, served):
        await sandbox.real_node.kubelet.stop()
        await sandbox.real_node.kubelet.start()


async def test_upper_api_server_is_restarted(sandbox: Sandbox, served: Served):
    """The outage lasts for some requests of both clients."""
    upper, (namespace, clients) = sandbox.upper, served
    async with _no_request_fails(upper, served):
        good = {name: await count(cluster, namespace, name, above=0) for name, cluster in clients.items()}
        await upper.apiserver.stop()
        try:
            for name, cluster in clients.items():
                await count(cluster, namespace, name, above=good[name][0] + 20)
        finally:
            await upper.restore()


async def test_virtual_node_is_killed_and_replaced(sandbox: Sandbox, served: Served):
    """There is no hand-over to the new process."""
    async with _no_request_fails(sandbox.upper, served):
        await sandbox.processes[0].kill()
        await sandbox.processes[0].start()
