"""With the multi-scheduler no pod is bound to a lower cluster whose policy refuses it, on real API servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_multi_scheduler
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready

pytestmark = [pytest.mark.e2e]
NAMESPACE = "shop"
CLUSTERS = {"lower2": {"policy": {"hostNamespaces": ["hostNetwork"]}}}


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "busybox:1.36"}],
            **spec,
        },
    }


async def test_pods_go_to_clusters_that_allow_them(simulated: Lend):
    """A pod that no cluster allows waits with the scheduler's event, and each cluster's reason in it."""
    async with simulated() as sandbox:
        config = configuration(sandbox)
        for cluster in config["clusters"]:
            cluster.update(CLUSTERS.get(cluster["name"], {}))
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        for cluster in sandbox.lower:
            await node_ready(sandbox.upper, f"vn-{cluster.name}")
        await start_multi_scheduler(sandbox, clusters=CLUSTERS)
        await make_namespace(sandbox.upper, NAMESPACE)
        sharing = [_pod(f"sharing-{number}", hostNetwork=True) for number in range(4)]
        nobody = _pod("nobody", hostPID=True)
        await create(sandbox.upper, NAMESPACE, *sharing, nobody)

        async def nodes() -> list[str]:
            found = (await get(sandbox.upper, NAMESPACE, "pods"))["items"]
            return [
                one["spec"].get("nodeName", "")
                for one in found
                if one["metadata"]["name"] != "nobody" and one["status"]["phase"] == "Running"
            ]

        await becomes(nodes, ["vn-lower2"] * len(sharing), what="all run in the cluster that takes them")

        async def is_reported() -> bool:
            conditions = (await get(sandbox.upper, NAMESPACE, "pod", "nobody"))["status"]["conditions"]
            (scheduled,) = [one for one in conditions if one["type"] == "PodScheduled"]
            return scheduled["status"] == "False" and all(
                text in scheduled["message"]
                for text in (
                    "Lower cluster lower1 does not take the pod: hostNamespaces: spec.hostPID is true, allowed: none",
                    "(set by clusters[lower2].policy.hostNamespaces)",
                )
            )

        await eventually(is_reported, what="both clusters' reasons in the scheduler's event")
