"""kubectl top and autoscaling in the upper cluster, for pods that run in a lower one."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.components.metrics_server import start_metrics_server
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.waiting import PATIENCE, becomes, create, eventually, get, ready
from tests.workloads import deployment

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
BUSY = "while :; do :; done"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def metrics(sandbox: Sandbox) -> AsyncIterator[Cluster]:
    """The upper cluster with a metrics-server."""
    try:
        process = await start_metrics_server(sandbox, sandbox.upper)
        yield sandbox.upper
        await process.stop()
    finally:
        # An aggregated API without a server would block the deletion of every namespace.
        await sandbox.upper.kubectl("delete", "apiservice", "v1beta1.metrics.k8s.io", "--ignore-not-found")
        await sandbox.upper.kubectl(
            "-n", "kube-system", "delete", "service,endpointslice", "metrics-server", "--ignore-not-found"
        )


def busy(name: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that uses a third of a core."""
    limits = {"limits": {"cpu": "300m"}, "requests": {"cpu": "100m"}}
    return pod(name, BUSY, container={"resources": limits}, **spec)


async def raw(cluster: Cluster, node: str, path: str) -> str:
    """Return a response of a node's kubelet API to an administrator (the API server's proxy refuses loopback addresses)."""
    status = (await get(cluster, "", "node", node))["status"]
    address = next(one["address"] for one in status["addresses"] if one["type"] == "InternalIP")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(cluster.pki.certificate("admin"), cluster.pki.key("admin"))
    url = f"https://{address}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}/{path}"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        return text


async def test_kubectl_top_shows_pods_and_nodes(metrics: Cluster, namespace):
    """Plausible values, by container too, under the upper names."""
    await create(metrics, namespace, busy("busy"))
    await ready(metrics, namespace, "busy")

    async def measured() -> bool:
        done = await metrics.kubectl(
            "-n", namespace, "top", "pod", "--containers", "--no-headers", check=False
        )
        if done.returncode:
            return False
        name, container, cpu, memory = done.stdout.split()
        return (
            (name, container) == ("busy", "main")
            and 10 <= int(cpu.removesuffix("m")) <= 500
            and "Mi" in memory
        )

    # A third of a core, or less on a busy machine.
    await eventually(measured, what="kubectl top pod shows a plausible part of a core")

    async def node_measured() -> bool:
        done = await metrics.kubectl("top", "node", REAL, "--no-headers", check=False)
        if done.returncode:
            return False
        name, cpu, _, memory, _ = done.stdout.split()
        return name == REAL and int(cpu.removesuffix("m")) >= 10 and int(memory.removesuffix("Mi")) > 100

    await eventually(node_measured, what="kubectl top node shows the lower node's usage")


async def test_an_autoscaler_scales_a_mirrored_deployment(metrics: Cluster, namespace):
    """A real HorizontalPodAutoscaler reacts to load in the lower cluster."""
    await create(metrics, namespace, deployment(busy("load"), replicas=1))
    await metrics.kubectl(
        "-n", namespace, "autoscale", "deployment", "load", "--cpu-percent=50", "--min=1", "--max=3"
    )

    async def scaled() -> bool:
        found = await get(metrics, namespace, "deployment", "load")
        return bool(found["spec"]["replicas"] > 1)

    await eventually(scaled, within=2 * PATIENCE, what="the Deployment is scaled up")
    await metrics.kubectl("-n", namespace, "delete", "hpa/load", "deployment/load")


async def test_metrics_endpoints_have_only_mirrored_pods(upper: Cluster, namespace):
    """Well-formed, under the upper names; no pods of the lower cluster's own."""
    await create(upper, namespace, busy("busy"))
    await ready(upper, namespace, "busy")
    uid = (await get(upper, namespace, "pod", "busy"))["metadata"]["uid"]

    for path in ("metrics/resource", "metrics/cadvisor"):

        async def measured(path: str = path) -> bool:
            families = list(text_string_to_metric_families(await raw(upper, REAL, path)))
            owners = {
                sample.labels["namespace"]
                for family in families
                for sample in family.samples
                if "namespace" in sample.labels
            }
            assert "kube-system" not in owners
            return namespace in owners

        await eventually(measured, what=f"the pod in {path}")
    assert "node_cpu_usage_seconds_total" in await raw(upper, REAL, "metrics/resource")

    async def summed_up() -> list[dict[str, str]]:
        summary = json.loads(await raw(upper, REAL, "stats/summary"))
        assert summary["node"]["nodeName"] == REAL
        assert summary["node"]["memory"]["workingSetBytes"] > 0
        return [one["podRef"] for one in summary["pods"] if one["podRef"]["namespace"] == namespace]

    await becomes(summed_up, [{"name": "busy", "namespace": namespace, "uid": uid}], what="the summary")
    await raw(upper, REAL, "metrics/probes")


async def test_a_lower_cluster_without_metrics_is_no_error(upper: Cluster):
    """Simulated nodes have no metrics: empty responses, no failures."""
    assert "pod=" not in await raw(upper, SIMULATED, "metrics/resource")
    summary = json.loads(await raw(upper, SIMULATED, "stats/summary"))
    assert summary["node"]["nodeName"] == SIMULATED
