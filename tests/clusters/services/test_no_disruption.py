"""Requests through Services of two lower clusters with real nodes: while one is drained, and while components are restarted.

All tests share the second cluster, because its start takes most of their time. While control planes, a kubelet and the
virtual node are restarted, the server's pods run in one lower cluster; one client runs beside them, the other in the second.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from tests.clusters.descheduler.setup import command
from tests.clusters.services.client_loop import REPLICAS, count, run_on, start_client, web
from tests.clusters.services.far_cluster import FAR, far_cluster
from tests.clusters.services.test_services import SERVE, run, service
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, node_ready, own_namespace, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

Served = tuple[str, dict[str, Cluster]]
"""The namespace of the Service; each client and the lower cluster in which it runs."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def far(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """The second lower cluster."""
    async with far_cluster(sandbox) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(sandbox: Sandbox, far: Sandbox) -> AsyncIterator[Served]:
    """The Service and both clients."""
    upper, near = sandbox.upper, sandbox.lower[0]
    async with own_namespace(upper, near, far.lower[0]) as namespace:
        await create(upper, namespace, *web(nodeSelector={"kubernetes.io/hostname": REAL}))
        await run_on(upper, namespace, REAL)
        await start_client(upper, namespace, "near", node=REAL)
        await start_client(upper, namespace, "far", node=FAR)
        yield namespace, {"near": near, "far": far.lower[0]}


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


async def test_pods_of_two_clusters_reach_each_other_by_name(far: Sandbox, upper: Cluster, namespace: str):
    """Two real nodes in two lower clusters on a flat network, in both directions."""
    assert far.lower
    await create(
        upper, namespace, service("near"), service("far"), pod("near", SERVE.format("from near")),
        pod("far", SERVE.format("from far"), node=FAR),
    )  # fmt: skip
    await ready(upper, namespace, "near")
    await ready(upper, namespace, "far")
    await run(upper, namespace, "near", f"wget -q -O- http://far.{namespace}", wanted="from far")
    await run(upper, namespace, "far", f"wget -q -O- http://near.{namespace}", wanted="from near")


async def test_no_request_fails_while_cluster_is_drained_and_refilled(
    sandbox: Sandbox, far: Sandbox, upper: Cluster, namespace: str
):
    """With the mechanism off, requests fail in the same drain."""
    async with _cordoned(upper, SIMULATED):
        async with _cordoned(upper, REAL):
            await create(upper, namespace, *web())
            await run_on(upper, namespace, FAR)
        await start_client(upper, namespace)
        async with _descheduler(sandbox, namespace):
            good, bad = await count(upper, namespace, above=20)
            assert bad == 0
            assert (await command(upper, "drain", FAR, "--timeout=3m"))[0] == 0
            await run_on(upper, namespace, REAL)
            await command(upper, "uncordon", FAR)
            code, text = await command(upper, "drain", REAL, "--timeout=3m")
            assert (code, f"{namespace}/client" in text) == (1, True), text  # the client may run only on REAL
            await run_on(upper, namespace, FAR)
            await command(upper, "uncordon", REAL)
            good, bad = await count(upper, namespace, above=good + 20)
            assert (bad, good > 100) == (0, True)
        async with _descheduler(sandbox, namespace, "--make-before-break=false"):
            assert (await command(upper, "drain", FAR, "--timeout=3m"))[0] == 0
            await run_on(upper, namespace, REAL)
            await command(upper, "uncordon", FAR)
            _, bad = await count(upper, namespace, above=good)
            assert bad > 0


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


@contextlib.asynccontextmanager
async def _cordoned(upper: Cluster, node: str) -> AsyncIterator[None]:
    await upper.kubectl("cordon", node)
    try:
        yield
    finally:
        await upper.kubectl("uncordon", node)


@contextlib.asynccontextmanager
async def _descheduler(sandbox: Sandbox, namespace: str, *arguments: str) -> AsyncIterator[None]:
    """Run a descheduler that only drains; wait until it leads."""
    upper = sandbox.upper
    process = await sandbox.start_process(
        f"descheduler-{len(arguments)}",
        [
            *(sys.executable, "-m", "descheduler", f"--kubeconfig={upper.kubeconfig}"),
            *(f"--freeze-namespace={namespace}", "--move-off-lost-clusters=false", *arguments),
        ],
    )

    async def leads() -> bool:
        lease = await get(upper, namespace, "lease", "virtual-node-descheduler")
        return bool(lease["spec"].get("holderIdentity"))

    try:
        await eventually(leads, what="the descheduler leads")
        yield
    finally:
        await process.stop()
