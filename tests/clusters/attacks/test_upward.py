"""A hostile lower administrator fills the upper etcd with events and statuses, on real API servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, eventually, get, node_ready, own_namespace, ready

pytestmark = pytest.mark.e2e
NODE = "vn-lower1"
_HUGE = "x" * 60_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(simulated: Lend) -> AsyncIterator[Sandbox]:
    """A lower cluster with a simulated node, and a virtual node."""
    async with simulated(lower=1) as sandbox:
        configuration = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(sandbox.upper.kubeconfig),
            "clusters": [
                {"name": "lower1", "kubeconfig": str(sandbox.lower[0].kubeconfig), "nodeName": NODE}
            ],
        }
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        await node_ready(sandbox.upper, NODE)
        yield sandbox


async def _copies(upper: Cluster, namespace: str) -> list[dict[str, Any]]:
    found = await get(
        upper, namespace, "events", fields="involvedObject.name=web", labels=f"virtual-node.io/node={NODE}"
    )
    items: list[dict[str, Any]] = found["items"]
    return items


async def test_a_flood_of_large_warnings_leaves_a_few_small_copies(clusters: Sandbox):
    """Of every size, component and reason; the events of another pod arrive at once."""
    upper, lower = clusters.upper, clusters.lower[0]
    async with own_namespace(upper, lower) as namespace:
        await create(
            upper, namespace, pod("web", "sleep 3600", node=NODE), pod("quiet", "sleep 3600", node=NODE)
        )
        for name in ("web", "quiet"):
            await ready(upper, namespace, name)

        def warning(number: int, name: str) -> dict[str, Any]:
            return {
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.{number}"}, "type": "Warning",
                "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uids[name]},
                "reason": f"Flood{number}", "message": f"{number} {_HUGE}", "source": {"component": f"c{number}"},
                "reportingComponent": "", "reportingInstance": "",
            }  # fmt: skip

        uids = {
            name: (await get(lower, namespace, "pod", name))["metadata"]["uid"] for name in ("web", "quiet")
        }
        for start in range(0, 200, 20):
            await asyncio.gather(
                *(create(lower, namespace, warning(number, "web")) for number in range(start, start + 20))
            )
        await create(lower, namespace, warning(0, "quiet"))

        async def arrived() -> bool:
            found = await get(upper, namespace, "events", fields="involvedObject.name=quiet,reason=Flood0")
            return len(found["items"]) == 1

        await eventually(arrived, what="the Warning of the other pod is copied")
        copies = await _copies(upper, namespace)
        assert 50 < len(copies) <= 102
        assert max(len(json.dumps(copy)) for copy in copies) < 4096


async def test_a_huge_status_is_cut(clusters: Sandbox):
    """Messages, conditions and containers that the upper pod does not have."""
    upper, lower = clusters.upper, clusters.lower[0]
    async with own_namespace(upper, lower) as namespace:
        await create(upper, namespace, pod("web", "sleep 3600", node=NODE))
        await ready(upper, namespace, "web")
        status = {
            "message": f"hostile {_HUGE}",
            "conditions": [
                {"type": f"a.example.com/t{number}", "status": "True", "message": _HUGE}
                for number in range(12)
            ],
        }
        patch = json.dumps({"status": status})
        file = clusters.directory / "status.json"
        file.write_text(patch, encoding="utf-8")
        await lower.kubectl(
            "-n", namespace, "patch", "pod", "web", "--subresource=status", f"--patch-file={file}"
        )

        async def arrived() -> bool:
            above = await get(upper, namespace, "pod", "web")
            return str(above["status"].get("message", "")).startswith("hostile")

        await eventually(arrived, what="the status is mirrored")
        above = await get(upper, namespace, "pod", "web")
        assert len(above["status"]["message"]) <= 1024
        kinds = {one["type"] for one in above["status"]["conditions"]}
        assert {"Ready", "a.example.com/t0"} <= kinds
        assert len(json.dumps(above)) < 40_000
