"""Pods of a Deployment are divided over lower clusters, with the stock schedulers and controllers on real API servers.

Lower cluster 1 has room for 12 pods of one core, lower cluster 2 for 60.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from clusterset.model import names
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_descheduler, start_multi_scheduler
from hack.sandbox.nodes.kwok import kwok_node
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, node_ready, own_namespace
from tests.workloads import deployment, kwok_pod

pytestmark = pytest.mark.e2e
_PRICES = {"lower1": {"cpu": 3.0}, "lower2": {"cpu": 1.0}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Both clusters, a virtual-node process, the multi-scheduler and the descheduler."""
    async with simulated() as running:
        for cluster, cpu in zip(running.lower, ("12", "60"), strict=True):
            await cluster.kubectl("delete", "node", "--all")
            await cluster.apply(kwok_node("large", cpu=cpu, memory="256Gi"))
            await node_ready(cluster, "large")
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(running)), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for cluster in running.lower:
            await node_ready(running.upper, f"vn-{cluster.name}")
        agents = [{"name": "fit"}, {"name": "division", "config": {"prices": _PRICES}}]
        await start_multi_scheduler(running, settings={"agents": agents})
        await start_descheduler(running, "--leader-elect=false")
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(sandbox: Sandbox) -> AsyncIterator[str]:
    """A namespace for the test."""
    async with own_namespace(sandbox.upper, *sandbox.lower) as name:
        yield name


def _deployment(name: str, replicas: int, division: str, **more: str) -> dict[str, Any]:
    annotations = {names.ANNOTATION_DIVISION: division, **more}
    return deployment(kwok_pod(name, annotations=annotations), replicas=replicas)


async def _pods(upper: Cluster, namespace: str, app: str) -> list[dict[str, Any]]:
    """Return the pods that are not being deleted."""
    found = (await get(upper, namespace, "pods", labels=f"app={app}"))["items"]
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


async def _divided(
    upper: Cluster, namespace: str, app: str, wanted: dict[str, int], *, costs: bool = True
) -> None:
    """Wait until so many pods run in each lower cluster, and until all have their deletion cost."""

    async def placed() -> dict[str, int]:
        pods = await _pods(upper, namespace, app)
        nodes = [
            pod["spec"].get("nodeName", "") if pod["status"].get("phase") == "Running" else "waits"
            for pod in pods
        ]
        return {node.removeprefix("vn-"): nodes.count(node) for node in sorted(set(nodes))}

    await becomes(placed, wanted, what=f"the pods of {app} are divided")

    async def numbered() -> bool:
        pods = await _pods(upper, namespace, app)
        found = [pod["metadata"]["annotations"].get(names.ANNOTATION_DELETION_COST) for pod in pods]
        return None not in found and len(set(found)) == len(pods)

    if costs:
        await eventually(numbered, what="all pods have a deletion cost of their own")


async def test_scaling_and_rollouts_keep_the_division(sandbox: Sandbox, namespace: str) -> None:
    """3:1 over two clusters, for 12, 8, 4, and 16 pods, and after a change of the template."""
    upper = sandbox.upper
    await create(upper, namespace, _deployment("web", 12, "lower1=3,lower2=1"))
    await _divided(upper, namespace, "web", {"lower1": 9, "lower2": 3})
    for replicas, wanted in (
        (8, {"lower1": 6, "lower2": 2}),
        (4, {"lower1": 3, "lower2": 1}),
        (16, {"lower1": 12, "lower2": 4}),
        (8, {"lower1": 6, "lower2": 2}),
    ):
        await upper.kubectl("-n", namespace, "scale", "deployment", "web", f"--replicas={replicas}")
        await _divided(upper, namespace, "web", wanted)
    await upper.kubectl("-n", namespace, "set", "env", "deployment/web", "NEW=1")
    await upper.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=120s")
    await _divided(upper, namespace, "web", {"lower1": 6, "lower2": 2})
    await upper.kubectl("-n", namespace, "delete", "deployment", "web", "--wait=true")


async def test_divides_by_room_and_by_price(sandbox: Sandbox, namespace: str) -> None:
    """The clusters have 12 and 60 free cores; one of them has a third of the other's price."""
    upper = sandbox.upper
    await create(upper, namespace, _deployment("room", 12, "room"))
    await _divided(upper, namespace, "room", {"lower1": 2, "lower2": 10})
    await upper.kubectl("-n", namespace, "scale", "deployment", "room", "--replicas=6")
    await _divided(upper, namespace, "room", {"lower1": 1, "lower2": 5})
    await create(upper, namespace, _deployment("price", 8, "price"))
    await _divided(upper, namespace, "price", {"lower1": 2, "lower2": 6})
    for name in ("room", "price"):
        await upper.kubectl("-n", namespace, "delete", "deployment", name, "--wait=true")


async def test_full_cluster_spills_over_up_to_the_maximum_skew(sandbox: Sandbox, namespace: str) -> None:
    """Lower cluster 1 takes 12 of 20 pods. Without maximum skew the other takes 8; with 2, it waits above 7 of 19 pods."""
    upper = sandbox.upper
    await create(upper, namespace, _deployment("soft", 20, "lower1=3,lower2=1"))
    await _divided(upper, namespace, "soft", {"lower1": 12, "lower2": 8})
    events = (await get(upper, namespace, "events"))["items"]
    assert "Lower cluster lower2 gets more than its share, because lower1 cannot take the pod" in {
        one["message"] for one in events if one["reason"] == "DivisionExceeded"
    }
    await upper.kubectl("-n", namespace, "delete", "deployment", "soft", "--wait=true")

    async def left() -> int:
        return len((await get(sandbox.lower[0], namespace, "pods"))["items"])

    await becomes(left, 0, what="the room is free again")
    skew = {names.ANNOTATION_DIVISION_MAX_SKEW: "2"}
    await create(upper, namespace, _deployment("hard", 20, "lower1=3,lower2=1", **skew))
    await _divided(upper, namespace, "hard", {"lower1": 12, "lower2": 6, "waits": 2}, costs=False)
    waiting = [pod for pod in await _pods(upper, namespace, "hard") if not pod["spec"].get("nodeName")]

    async def is_explained() -> bool:
        pod = await get(upper, namespace, "pod", waiting[0]["metadata"]["name"])
        texts = [one.get("message", "") for one in pod["status"].get("conditions") or ()]
        return any(
            "lower cluster lower2 has 6 of 18 pods, and one more is above its share" in text for text in texts
        )

    await eventually(is_explained, what="the scheduler's event names the annotation")
    await upper.kubectl("-n", namespace, "delete", "deployment", "hard", "--wait=true")


async def test_invalid_division_is_reported(sandbox: Sandbox, namespace: str) -> None:
    """The pod runs nevertheless."""
    upper = sandbox.upper
    await create(upper, namespace, _deployment("typo", 1, "lower1=3;lower2=1"))

    async def messages() -> set[str]:
        events = (await get(upper, namespace, "events"))["items"]
        return {one["message"] for one in events if one["reason"] == "InvalidDivision"}

    async def is_reported() -> bool:
        return any(
            "annotation virtual-node.io/division: 'lower1=3;lower2=1'" in text for text in await messages()
        )

    await eventually(is_reported, what="an event names the annotation")
    assert len(await _pods(upper, namespace, "typo")) == 1
