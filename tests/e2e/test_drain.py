"""A client's requests through a Service while a lower cluster is drained and refilled, on two real nodes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.nodes import network
from tests.e2e.conftest import REAL, SIMULATED, becomes, create, eventually, get, node_ready, pod, ready
from tests.integration.descheduler.setup import command, pods_of

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

FAR = "vn-far"
REPLICAS = 3
_SERVE = "sleep 6; echo web > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
"""The start takes longer than the end of a pod (``preStop``), as in most applications."""
_REQUEST = "timeout 2 wget -q -O- http://web >/dev/null"
_LOOP = (
    f"until {_REQUEST}; do sleep 1; done; good=0; bad=0; "
    f"while true; do if {_REQUEST}; then good=$((good+1)); else bad=$((bad+1)); fi; "
    "echo $good $bad >/tmp/count; sleep 0.1; done"
)
"""Counts requests from the first that succeeds, because a new Service is not known on the node at once."""


async def test_no_request_fails_while_cluster_is_drained_and_refilled(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """With the mechanism off, requests fail in the same drain."""
    async with _far(sandbox, upper), _cordoned(upper, SIMULATED):
        async with _cordoned(upper, REAL):
            await create(upper, namespace, _service(), _deployment())
            await _run_on(upper, namespace, FAR)
        await create(upper, namespace, pod("client", _LOOP))
        await ready(upper, namespace, "client")
        async with _descheduler(sandbox, namespace):
            good, bad = await _count(upper, namespace, above=20)
            assert bad == 0
            assert (await command(upper, "drain", FAR, "--timeout=3m"))[0] == 0
            await _run_on(upper, namespace, REAL)
            await command(upper, "uncordon", FAR)
            code, text = await command(upper, "drain", REAL, "--timeout=3m")
            assert (code, f"{namespace}/client" in text) == (1, True), text  # only there is it admitted
            await _run_on(upper, namespace, FAR)
            await command(upper, "uncordon", REAL)
            good, bad = await _count(upper, namespace, above=good + 20)
            assert (bad, good > 100) == (0, True)
        async with _descheduler(sandbox, namespace, "--make-before-break=false"):
            assert (await command(upper, "drain", FAR, "--timeout=3m"))[0] == 0
            await _run_on(upper, namespace, REAL)
            await command(upper, "uncordon", FAR)
            _, bad = await _count(upper, namespace, above=good)
            assert bad > 0


async def _count(upper: Cluster, namespace: str, *, above: int) -> tuple[int, int]:
    """Return the requests of the client that succeeded and failed, when more than ``above`` have succeeded."""
    found = (0, 0)

    async def enough() -> bool:
        nonlocal found
        text = (await upper.kubectl("-n", namespace, "exec", "client", "--", "cat", "/tmp/count")).stdout
        good, bad = map(int, text.split())
        found = (good, bad)
        return good > above

    await eventually(enough, what=f"more than {above} requests succeed")
    return found


async def _run_on(upper: Cluster, namespace: str, node: str) -> None:
    """Wait until all pods of the Deployment are on a node and Ready, and no other is left."""

    async def places() -> list[str]:
        found = (await get(upper, namespace, "pods", labels="app=web"))["items"]
        return [
            item["spec"].get("nodeName", "")
            for item in found
            for condition in item["status"].get("conditions") or ()
            if condition["type"] == "Ready" and condition["status"] == "True"
        ]

    await becomes(places, [node] * REPLICAS, what=f"{REPLICAS} pods are Ready on {node}")
    assert (
        len([one for one in await pods_of(upper, namespace) if one["metadata"]["name"] != "client"])
        == REPLICAS
    )


@contextlib.asynccontextmanager
async def _far(sandbox: Sandbox, upper: Cluster) -> AsyncIterator[None]:
    """Add a second lower cluster with a real node, on a flat network with the first."""
    async with Sandbox(lower=1, real_node=True) as far:
        assert sandbox.bridge is not None
        assert far.bridge is not None
        network.connect(sandbox.bridge, far.bridge)
        await far.upper.controller_manager.stop()  # only its lower cluster is used here
        configuration = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(upper.kubeconfig),
            "kubelet": {"port": 0, "nodeIp": LOOPBACK},
            "clusters": [{"name": "far", "kubeconfig": str(far.lower[0].kubeconfig), "nodeName": FAR}],
        }
        file = sandbox.directory / "far.yaml"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        process = await sandbox.start_virtual_node("--config", str(file), name="virtual-node-far")
        try:
            await node_ready(upper, FAR)
            yield
            await upper.kubectl("delete", "deployments", "--all", "--all-namespaces", "--cascade=foreground")
        finally:
            await process.stop()
            await upper.kubectl("delete", "node", FAR)


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


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


def _deployment() -> dict[str, Any]:
    container = {
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "3"]}}},
    }
    template = pod("web", _SERVE, container=container, nodeSelector={}, terminationGracePeriodSeconds=4)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }
