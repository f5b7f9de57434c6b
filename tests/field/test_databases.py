"""Operators of databases require that replicas share no host: a lower node, not a virtual node."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.ports import free_ports
from tests.clusters.virtual_nodes import SIMULATED
from tests.recipes import block
from tests.waiting import create, eventually, get
from webhook import manifests

pytestmark = [pytest.mark.e2e]


@pytest_asyncio.fixture(loop_scope="session")
async def webhook(sandbox: Sandbox) -> AsyncIterator[None]:
    """The webhook, registered for the test."""
    (port,) = free_ports(1)
    url = f"https://{LOOPBACK}:{port}"
    arguments = [f"--kubeconfig={sandbox.upper.kubeconfig}", f"--address={LOOPBACK}", f"--port={port}"]
    process = await sandbox.start_process(
        "webhook", [sys.executable, "-m", "webhook", *arguments, "--register", f"--url={url}"]
    )
    kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
    try:
        await eventually(lambda: _is_registered(sandbox.upper), what="the webhook is registered")
        yield
    finally:
        await process.stop()
        await sandbox.upper.kubectl("delete", kinds, manifests.NAME, "--ignore-not-found")


async def _is_registered(upper: Cluster) -> bool:
    found = await upper.kubectl("get", "mutatingwebhookconfigurations", manifests.NAME, check=False)
    return found.returncode == 0


@pytest.mark.usefixtures("webhook")
async def test_replicas_of_a_database_run_on_different_lower_nodes_of_one_cluster(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """The recipe's StatefulSet. Both replicas are on one virtual node, and a third one waits for a lower node."""
    database = block("Databases in a StatefulSet", "database.yaml")
    database["spec"] |= {"replicas": 3, "podManagementPolicy": "Parallel"}
    database["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": SIMULATED}
    await create(upper, namespace, database)
    lower = sandbox.clusters[2]

    async def placed() -> bool:
        pods = (await get(lower, namespace, "pods"))["items"]
        return len(pods) == 3 and len([pod for pod in pods if pod["spec"].get("nodeName")]) == 2

    await eventually(placed, what="two of three replicas have a lower node")
    lower_nodes = {pod["spec"].get("nodeName") for pod in (await get(lower, namespace, "pods"))["items"]}
    assert len(lower_nodes) == 3  # one of them is None
    upper_pods = (await get(upper, namespace, "pods"))["items"]
    assert {pod["spec"]["nodeName"] for pod in upper_pods} == {SIMULATED}
    assert all("podAntiAffinity" not in pod["spec"]["affinity"] for pod in upper_pods)
