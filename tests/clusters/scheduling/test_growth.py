"""Pods wait for nodes that an autoscaler adds to a lower cluster, with the stock schedulers on real API servers.

The autoscaler is a stand-in: it adds nodes to a lower cluster while pods are Unschedulable there. Lower cluster 1 has one
node of one core and is cheaper to extend, lower cluster 2 has no nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from controller_runtime import resources
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_descheduler, start_multi_scheduler
from hack.sandbox.nodes.kwok import kwok_node
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, node_ready, own_namespace
from tests.workloads import deployment, kwok_pod

pytestmark = pytest.mark.e2e
_CORES = 4
_LABELS = {"pool": "new"}
_PROVISION_SECONDS = 25


def _growth(price: float) -> dict[str, Any]:
    shape = {
        "name": "small",
        "resources": {"cpu": str(_CORES), "memory": "8Gi"},
        "labels": _LABELS,
        "price": price,
    }
    return {"maxNodes": 3, "provisionSeconds": _PROVISION_SECONDS, "shapes": [shape]}


class _Autoscaler:
    """Adds a node of four cores to a cluster while a pod of the cluster is Unschedulable and no new node is free."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.added: list[str] = []
        self.has_capacity = True
        """Whether the cloud has machines; otherwise pods wait."""

    async def run(self) -> None:
        """Look at the pods until cancelled."""
        while True:
            await asyncio.sleep(1)
            if self.has_capacity and (missing := await self._missing_cores()):
                for _ in range(-(-missing // _CORES)):
                    name = f"{self._cluster.name}-new-{len(self.added)}"
                    node = kwok_node(name, cpu=str(_CORES), memory="8Gi", labels=_LABELS)
                    await self._cluster.api.create(resources.NODES.path(), node)
                    self.added.append(name)
                    await node_ready(self._cluster, name)
                await asyncio.sleep(2)  # until the scheduler has retried the waiting pods

    async def _missing_cores(self) -> int:
        pods = (await self._cluster.api.read(resources.PODS.path()))["items"]
        return sum(
            int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            for pod in pods
            if any(one.get("reason") == "Unschedulable" for one in pod["status"].get("conditions") or ())
        )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Both clusters, a virtual-node process, the descheduler and the multi-scheduler."""
    async with simulated() as running:
        for cluster in running.lower:
            await cluster.kubectl("delete", "node", "--all")
        await running.lower[0].apply(kwok_node("fixed", cpu="1"))
        await node_ready(running.lower[0], "fixed")
        settings = configuration(running)
        growth = {"lower1": _growth(1.0), "lower2": _growth(2.0)}
        for cluster in settings["clusters"]:
            cluster["autoscaling"] = growth[cluster["name"]]
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for cluster in running.lower:
            await node_ready(running.upper, f"vn-{cluster.name}")
        nodes = {
            name: {"nodes": [{"name": f"vn-{name}", "autoscaling": found}]} for name, found in growth.items()
        }
        await start_multi_scheduler(running, clusters=nodes)
        # Less than provisionSeconds: the descheduler must not move pods that wait for a node.
        await start_descheduler(running, "--unschedulable-threshold=5s", "--leader-elect=false")
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def autoscalers(sandbox: Sandbox) -> AsyncIterator[list[_Autoscaler]]:
    """A stand-in per lower cluster."""
    made = [_Autoscaler(cluster) for cluster in sandbox.lower]
    tasks = [asyncio.create_task(one.run()) for one in made]
    yield made
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(sandbox: Sandbox) -> AsyncIterator[str]:
    """A namespace for the test."""
    async with own_namespace(sandbox.upper, *sandbox.lower) as name:
        yield name


async def _placed(upper: Cluster, namespace: str, app: str) -> dict[str, int]:
    """Return the number of Running pods by virtual node."""
    pods = (await get(upper, namespace, "pods", labels=f"app={app}"))["items"]
    nodes = [pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running"]
    return {node: nodes.count(node) for node in sorted(set(nodes))}


async def _messages(upper: Cluster, namespace: str, reason: str) -> list[str]:
    events = (await get(upper, namespace, "events"))["items"]
    return [one["message"] for one in events if one["reason"] == reason]


async def test_burst_makes_only_the_cheaper_cluster_grow(
    sandbox: Sandbox, namespace: str, autoscalers: list[_Autoscaler]
) -> None:
    """Nine pods: one on the existing node, eight on two new nodes of the same cluster."""
    upper = sandbox.upper
    cheaper, other = autoscalers
    await create(upper, namespace, deployment(kwok_pod("burst"), replicas=9))

    async def placed() -> dict[str, int]:
        return await _placed(upper, namespace, "burst")

    await becomes(placed, {"vn-lower1": 9}, what="all pods run in the cheaper cluster")
    assert (len(cheaper.added), other.added) == (2, [])
    text = f"Waits for a new lower node of shape small behind vn-lower1, at most {_PROVISION_SECONDS} s"
    assert set(await _messages(upper, namespace, "WaitingForNode")) == {text}
    await upper.kubectl("-n", namespace, "delete", "deployment", "burst", "--wait=true")


async def test_full_cluster_leaves_growth_to_the_next_one(
    sandbox: Sandbox, namespace: str, autoscalers: list[_Autoscaler]
) -> None:
    """Three new nodes and the old one take thirteen pods, the other cluster grows for the rest."""
    upper = sandbox.upper
    cheaper, other = autoscalers
    await create(upper, namespace, deployment(kwok_pod("many"), replicas=15))

    async def placed() -> dict[str, int]:
        return await _placed(upper, namespace, "many")

    await becomes(placed, {"vn-lower1": 13, "vn-lower2": 2}, what="all pods run")
    assert (len(cheaper.added), len(other.added)) == (3, 1)
    await upper.kubectl("-n", namespace, "delete", "deployment", "many", "--wait=true")


async def test_group_starts_on_existing_and_new_nodes(
    sandbox: Sandbox, namespace: str, autoscalers: list[_Autoscaler]
) -> None:
    """Twelve pods that start together: four on the node that exists, eight on two new nodes."""
    upper = sandbox.upper
    group = deployment(kwok_pod("group"), replicas=12)
    template = group["spec"]["template"]
    template["metadata"]["annotations"] = {
        "virtual-node.io/pod-group": "group",
        "virtual-node.io/min-members": "12",
    }
    template["spec"]["nodeSelector"] = {"clusterID": "lower2"}
    await create(upper, namespace, group)

    async def placed() -> dict[str, int]:
        return await _placed(upper, namespace, "group")

    await becomes(placed, {"vn-lower2": 12}, what="all pods of the group run")
    assert len(autoscalers[1].added) == 3
    await upper.kubectl("-n", namespace, "delete", "deployment", "group", "--wait=true")


async def test_pod_moves_on_if_no_node_comes(
    sandbox: Sandbox, namespace: str, autoscalers: list[_Autoscaler]
) -> None:
    """The cheaper cluster has no machines: after ``provisionSeconds`` the descheduler moves the pod, not before."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    cheaper, other = autoscalers
    cheaper.has_capacity = other.has_capacity = False
    for name in (*cheaper.added, *other.added, "fixed"):
        cluster = lower if name in cheaper.added or name == "fixed" else sandbox.lower[1]
        await cluster.api.delete(resources.NODES.path(name=name))

    async def nodes() -> int:
        return sum([len((await get(one, "", "nodes"))["items"]) for one in sandbox.lower])

    await becomes(nodes, 0, what="the clusters have no nodes")
    other.has_capacity = True
    await create(upper, namespace, deployment(kwok_pod("late"), replicas=1))

    async def is_waiting() -> bool:
        return bool(await _messages(upper, namespace, "WaitingForNode"))

    await eventually(is_waiting, what="the pod waits")

    async def placed() -> dict[str, int]:
        return await _placed(upper, namespace, "late")

    await becomes(placed, {"vn-lower2": 1}, what="the pod runs in the other cluster")
    (text,) = set(await _messages(upper, namespace, "NodeNotAdded"))
    assert text.startswith(
        f"Lower cluster lower1 added no usable node of shape small within {_PROVISION_SECONDS} s"
    )
    moved = await _messages(upper, namespace, "Descheduled")
    assert len(moved) <= 1, "the pod was moved once"
