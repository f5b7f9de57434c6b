"""Virtual nodes that stop answering, their pods, and what tests of lost clusters read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from clusterset.model import names
from clusterset.model.moving import silence
from clusterset.model.moving.silence import Silence
from controller_runtime.apimachinery import timestamps
from descheduler.config import EvictionOptions
from descheduler.strategies.stale_cluster import StaleCluster, StaleClusterParams
from tests.unit.descheduler.bodies import node, now, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

AT_ONCE = StaleClusterParams(move_running_after_seconds=20)
"""Running pods move as soon as the cluster is lost."""


class Nodes:
    """Virtual nodes that renew their Leases every ten seconds, except silent ones."""

    def __init__(self, cluster: Cluster, *all_nodes: str) -> None:
        self.cluster = cluster
        self.silent: set[str] = set()
        for name in all_nodes:
            cluster.put("nodes", node(name))
            self.renew(name)

    def renew(self, name: str) -> None:
        lease = {
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"renewTime": timestamps.micro_time(now()), "leaseDurationSeconds": 40},
        }
        self.cluster.put("leases", lease)

    def set_ready(self, name: str, *, ready: bool, reason: str = "") -> None:
        status = node(name, ready=ready, reason=reason)["status"]
        status["conditions"][0]["lastTransitionTime"] = timestamps.rfc3339(now())
        self.cluster.replace("nodes", name, status=status)

    @contextlib.asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Renew the Leases in the block."""

        async def run() -> None:
            while True:
                await asyncio.sleep(10)
                for found in self.cluster.all("nodes"):
                    name = found["metadata"]["name"]
                    if name not in self.silent:
                        self.renew(name)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def running(**fields: Any) -> dict[str, Any]:
    """Return a pod that runs on node a."""
    body = pod(phase="Running", refused_at=None, **fields)
    body["status"]["conditions"].append({"type": "Ready", "status": "True"})
    return body


def setting(*bodies: dict[str, Any], params: Any = None, **options: Any) -> tuple[Nodes, Process, Any]:
    """Return nodes a and b, a process, and its StaleCluster strategy."""
    cluster = Cluster()
    nodes = Nodes(cluster, "a", "b")
    for body in bodies:
        cluster.put("pods", body)
    process, strategy = leader(cluster, params or AT_ONCE, **options)
    return nodes, process, strategy


def leader(cluster: Cluster, params: StaleClusterParams, **options: Any) -> tuple[Process, Any]:
    """Return a process with the strategy, and the strategy."""
    process = Process(cluster, options=EvictionOptions(**options))
    return process, process.add(StaleCluster, params)


def taints(nodes: Nodes) -> set[str]:
    """Return the keys of node a's taints."""
    found = nodes.cluster.find("nodes", "a")
    assert found is not None
    return {taint["key"] for taint in found["spec"]["taints"]}


def since(nodes: Nodes) -> str:
    """Return when node a got the taint of a lost cluster."""
    found = nodes.cluster.find("nodes", "a")
    assert found is not None
    (moment,) = [
        one["timeAdded"] for one in found["spec"]["taints"] if one["key"] == names.TAINT_STALE_CLUSTER
    ]
    return str(moment)


def is_moved(nodes: Nodes) -> bool:
    """Report whether the bare pod was re-created."""
    (found,) = nodes.cluster.all("pods")
    return "nodeName" not in found["spec"]


def silence_of(nodes: Nodes) -> Silence | None:
    """Return the silence of node a for which other programs count down."""
    return silence.of_node(nodes.cluster.get("nodes", "a"))
