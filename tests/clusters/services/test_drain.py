"""A client's requests through a Service while a lower cluster is drained and refilled, on two real nodes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.descheduler.setup import command
from tests.clusters.services.client_loop import count, run_on, start_client, web
from tests.clusters.services.far_cluster import FAR, far_cluster
from tests.clusters.virtual_nodes import REAL, SIMULATED
from tests.waiting import create, eventually, get

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def test_no_request_fails_while_cluster_is_drained_and_refilled(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """With the mechanism off, requests fail in the same drain."""
    async with far_cluster(sandbox), _cordoned(upper, SIMULATED):
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
