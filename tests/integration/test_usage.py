"""Pods go where measured usage is best, and a lost source of usage blocks nothing, on real API servers."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import aiohttp
import pytest

from hack.sandbox import Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.demo import configuration
from hack.sandbox.ports import free_ports
from hack.sandbox.scheduling import start_multi_scheduler
from tests import metrics_api
from tests.waiting import becomes, create, get, make_namespace, node_ready

pytestmark = [pytest.mark.e2e]
NAMESPACE = "shop"
IDLE, BUSY = (20_000, 1024), (62_000, 1024)
SETTINGS = {
    "usage": {"source": "MetricsAPI", "intervalSeconds": 1, "window": 1, "maxAgeSeconds": 3},
    "agents": [
        {"name": "fit", "weight": 0},
        {"name": "load", "weight": 1, "config": {"policy": "TargetLoadPacking"}},
    ],
}


def _pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"type": "virtual-kubelet"},
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "busybox:1.36", "resources": {"requests": {"cpu": "100m"}}}
            ],
        },
    }


async def _source_failed(address: str) -> dict[str, float]:
    """Return the clusters with unreadable usage, by the multi-scheduler's metrics."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = [line.split('"') for line in lines if line.startswith("virtual_node_usage_source_failed{")]
    return {parts[1]: float(parts[2].removeprefix("} ")) for parts in found}


async def test_pods_go_to_the_idle_cluster_and_a_lost_source_is_neutral() -> None:
    """Nodes of 64 CPUs at 31 % and at 97 %; a target of 40 % prefers the first, and an unknown usage scores between."""
    async with Sandbox(lower=2, kwok_nodes=1, bridged=True) as sandbox, contextlib.AsyncExitStack() as stack:
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(sandbox)), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        assert sandbox.bridge is not None
        address = sandbox.bridge.address
        one, two = [
            await stack.enter_async_context(metrics_api.serving(cluster, address))
            for cluster in sandbox.lower
        ]
        first, second = ("lower1-node-0", "lower2-node-0")
        one.nodes, two.nodes = {first: BUSY}, {second: IDLE}
        for cluster in sandbox.lower:
            await node_ready(sandbox.upper, f"vn-{cluster.name}")
        (port,) = free_ports(1)
        health = f"{LOOPBACK}:{port}"
        await start_multi_scheduler(sandbox, f"--health-addr={health}", settings=SETTINGS)
        await make_namespace(sandbox.upper, NAMESPACE)
        numbers = itertools.count()

        async def bound_to() -> str:
            """Return the node that the scheduler binds a new pod to."""
            name = f"pod-{next(numbers)}"
            await create(sandbox.upper, NAMESPACE, _pod(name))
            node = ""

            async def is_bound() -> bool:
                nonlocal node
                node = (await get(sandbox.upper, NAMESPACE, "pod", name))["spec"].get("nodeName", "")
                return bool(node)

            await becomes(is_bound, True, what=f"{name} is bound")
            return node

        await becomes(bound_to, "vn-lower2", what="the idle cluster gets the pod")
        two.nodes = None
        await becomes(lambda: _source_failed(health), {"lower1": 0, "lower2": 1}, what="the loss is reported")
        await becomes(bound_to, "vn-lower2", what="not known is better than busy")
        one.nodes = {first: IDLE}
        await becomes(bound_to, "vn-lower1", what="idle is better than not known")
        one.nodes = None
        await becomes(lambda: _source_failed(health), {"lower1": 1, "lower2": 1}, what="both are lost")
        assert await bound_to() in {"vn-lower1", "vn-lower2"}
        one.nodes, two.nodes = {first: BUSY}, {second: IDLE}
        await becomes(bound_to, "vn-lower2", what="the sources are used when they return")
