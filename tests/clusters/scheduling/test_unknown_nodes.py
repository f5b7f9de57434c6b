"""The multi-scheduler gives no pods to virtual nodes of lower clusters that its configuration lacks, on real API servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_multi_scheduler
from tests.clusters.descheduler.setup import command
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready

pytestmark = [pytest.mark.e2e]
NAMESPACE = "shop"
HOST = "kubernetes.io/hostname"


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "busybox:1.36"}],
            **spec,
        },
    }


async def test_pods_get_only_virtual_nodes_of_configured_clusters(simulated: Lend):
    """One wrong name does not stop scheduling for the others. The event of a pod that must wait says what to write."""
    async with simulated() as sandbox:
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(sandbox)), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        for cluster in sandbox.lower:
            await node_ready(sandbox.upper, f"vn-{cluster.name}")
        first = {"name": "lower1", "kubeconfig": str(sandbox.lower[0].kubeconfig)}
        wrong = {"name": "lowre2", "kubeconfig": str(sandbox.lower[1].kubeconfig)}
        await start_multi_scheduler(sandbox, settings={"clusters": [first, wrong]})
        await make_namespace(sandbox.upper, NAMESPACE)
        free = [_pod(f"free-{number}") for number in range(4)]
        await create(sandbox.upper, NAMESPACE, *free, _pod("pinned", nodeSelector={HOST: "vn-lower2"}))

        async def nodes() -> list[str]:
            found = (await get(sandbox.upper, NAMESPACE, "pods"))["items"]
            return [
                one["spec"].get("nodeName", "") for one in found if one["metadata"]["name"].startswith("free")
            ]

        await becomes(nodes, ["vn-lower1"] * len(free), what="all are bound to the known virtual node")

        async def is_explained() -> bool:
            conditions = (await get(sandbox.upper, NAMESPACE, "pod", "pinned"))["status"]["conditions"]
            (scheduled,) = [one for one in conditions if one["type"] == "PodScheduled"]
            return scheduled["status"] == "False" and (
                "virtual node vn-lower2 (label virtual-node.io/lower-cluster: lower2) belongs to no lower cluster of the "
                "multi-scheduler's configuration (its clusters without a virtual node: lowre2): write "
                "`nodes: [{name: vn-lower2}]`" in scheduled["message"]
            )

        await eventually(is_explained, what="the reason in the scheduler's condition")
        code, text = await command(sandbox.upper, "doctor")
        assert code == 1
        assert (
            "the upper cluster has no virtual node of cluster lowre2; virtual nodes without a cluster: vn-lower2"
            in text
        )
