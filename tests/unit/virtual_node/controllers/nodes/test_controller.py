"""When the Node of a virtual node is Ready."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.config import DNSConfig
from clusterset.model.autoscaling import Autoscaling, Shape, Taint
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.pod.conditions import condition, is_true
from controller_runtime import resources
from tests.background import working
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene, clusters
from virtual_node.controllers.nodes import HealthController, NodeController

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def _lower_node(*, ready: bool, name: str = "n1", is_cordoned: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": True} if is_cordoned else {},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def _controller(scene: Scene) -> NodeController:
    """Return the controller of a virtual node in a lower cluster that answers."""
    health: Any = SimpleNamespace(reachable=True, error="")
    return NodeController(
        scene.context,
        scene.context.nodes["vn"],
        scene.all_caches,
        health=health,
        addresses=[],
        kubelet_port=10250,
    )


async def test_cluster_that_can_grow_needs_a_ready_node_after_provision_seconds():
    """It is Ready without nodes, and while a new node starts. If its nodes stay NotReady, its pods must move."""
    upper, lower = clusters()
    growth = Autoscaling(
        max_nodes=3,
        provision_seconds=60,
        shapes=[Shape(name="small", resources={"cpu": "4", "memory": "8Gi"})],
    )
    scene = Scene(upper, lower, autoscaling=growth)
    caches, controller = scene.all_caches, _controller(scene)

    async def is_ready(*, after: float) -> bool:
        await asyncio.sleep(after)
        return is_true(upper.the("nodes", "vn")["status"], "Ready")

    async with (
        working(caches.lower_nodes.run()),
        working(caches.foreign_pods.run()),
        working(controller.run()),
    ):
        assert await is_ready(after=200)
        lower.put("nodes", _lower_node(ready=False))
        assert await is_ready(after=50)
        assert not await is_ready(after=30)
        lower.put("nodes", _lower_node(ready=True))
        assert await is_ready(after=5)
        lower.put("nodes", _lower_node(ready=False))
        assert await is_ready(after=50)


async def test_cluster_with_cordoned_nodes_is_ready_and_has_no_room():
    """A virtual node that is not Ready loses its pods after 300 s, and a cordon evicts no pods. Another node is NotReady."""
    upper, lower = clusters()
    scene = Scene(upper, lower)
    caches, controller = scene.all_caches, _controller(scene)
    lower.put("nodes", _lower_node(ready=True))
    lower.put("nodes", _lower_node(ready=False, name="n2"))
    async with (
        working(caches.lower_nodes.run()),
        working(caches.foreign_pods.run()),
        working(controller.run()),
    ):
        await asyncio.sleep(10)
        assert upper.the("nodes", "vn")["status"]["allocatable"]["cpu"] == "4"
        lower.put("nodes", _lower_node(ready=True, is_cordoned=True))
        await asyncio.sleep(10)
        status = upper.the("nodes", "vn")["status"]
        assert is_true(status, "Ready")
        assert "cordoned" in condition(status, "Ready")["message"]
        assert not status["allocatable"]
        assert condition(status, "Ready")["reason"] == "LowerNodesCordoned"
        lower.put("nodes", _lower_node(ready=False, is_cordoned=True))
        await asyncio.sleep(10)
        assert condition(upper.the("nodes", "vn")["status"], "Ready")["reason"] == "NoReadyLowerNodes"


@pytest.mark.parametrize("closed", [{"is_cordoned": True, "ready": True}, {"ready": False}])
async def test_own_pods_on_a_cordoned_node_take_no_room_of_the_others(closed):
    """The upper scheduler subtracted them from the other nodes: it left pods Pending, or preempted others in vain."""
    upper, lower = clusters()
    scene = Scene(upper, lower)
    caches, controller = scene.all_caches, _controller(scene)
    for name in ("n1", "n2"):
        lower.put("nodes", _lower_node(ready=True, name=name))

    def allocatable() -> tuple[str, str]:
        found = upper.the("nodes", "vn")["status"]["allocatable"]
        return found["cpu"], found["pods"]

    async def running(name: str, *, node: str) -> None:
        needs = {"requests": {"cpu": "1", "memory": "1Gi"}}
        scene.bind(name, uid=name, containers=[{"name": "c", "image": "i", "resources": needs}])
        await asyncio.sleep(5)
        lower.change("pods", f"shop/{name}", spec={"nodeName": node}, status={"phase": "Running"})
        await asyncio.sleep(5)

    async with (
        working(caches.lower_nodes.run()),
        working(caches.foreign_pods.run()),
        working(scene.run()),
        working(controller.run()),
    ):
        await running("web", node="n1")
        await running("other", node="n2")
        assert allocatable() == ("8", "220")
        lower.put("nodes", _lower_node(name="n1", **closed))
        await asyncio.sleep(10)
        assert allocatable() == ("5", "111")  # 4 CPUs of n2, of which "other" uses one, and that of "web"
        # The caches show the binding of a pod after the change of the node.
        await running("late", node="n1")
        assert allocatable() == ("6", "112")
        lower.put("nodes", _lower_node(name="n2", **closed))
        await asyncio.sleep(10)
        assert not upper.the("nodes", "vn")["status"][
            "allocatable"
        ]  # by which programs see that it is closed
        lower.put("nodes", _lower_node(ready=True, name="n2"))
        await asyncio.sleep(10)
        assert allocatable() == ("6", "112")
        lower.change("pods", "shop/late", status={"phase": "Succeeded"})
        await upper.delete(resources.PODS, "web", namespace="shop")
        await asyncio.sleep(5)
        lower.remove("pods", "shop/web")
        await asyncio.sleep(10)
        assert allocatable() == ("4", "110")
        lower.put("nodes", _lower_node(ready=True, name="n1"))
        await asyncio.sleep(10)
        assert allocatable() == ("8", "220")


async def test_changed_taints_of_the_configuration_change_the_node():
    """The setting had no effect after the Node was registered. The cordon stays."""
    upper, lower = clusters()

    async def after_start_with(taints: list[Taint] | None) -> list[str]:
        """Return the keys of the Node's taints after a process with this configuration has started."""
        scene = Scene(upper, lower)
        scene.context.nodes["vn"].taints = taints
        async with working(_controller(scene).run()):
            await asyncio.sleep(10)
        return [taint["key"] for taint in upper.the("nodes", "vn")["spec"].get("taints") or ()]

    cordon, ours = "node.kubernetes.io/unschedulable", "virtual-kubelet.io/provider"
    assert await after_start_with(None) == [ours]
    present = upper.the("nodes", "vn")["spec"]["taints"]
    upper.change("nodes", "vn", spec={"taints": [*present, {"key": cordon, "effect": "NoSchedule"}]})
    assert await after_start_with(None) == [ours, cordon]
    assert await after_start_with([]) == [cordon]
    assert await after_start_with([Taint(key="gpu")]) == [cordon, "gpu"]


async def test_condition_that_a_route_controller_sets_is_reset_at_once():
    """It finds no machine, and sets NetworkUnavailable every 10 s. No pod is scheduled to the Node as long as it is set."""
    upper, lower = clusters()
    scene = Scene(upper, lower, status_interval=600)
    caches, controller = scene.all_caches, _controller(scene)
    lower.put("nodes", _lower_node(ready=True))
    async with (
        working(caches.lower_nodes.run()),
        working(caches.foreign_pods.run()),
        working(controller.run()),
    ):
        await asyncio.sleep(30)
        conditions = upper.the("nodes", "vn")["status"]["conditions"]
        others = [one for one in conditions if one["type"] != "NetworkUnavailable"]
        assert len(others) == len(conditions) - 1
        set_by_cloud = {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"}
        upper.change("nodes", "vn", status={"conditions": [*others, set_by_cloud]})
        await asyncio.sleep(2)
        found = condition(upper.the("nodes", "vn")["status"], "NetworkUnavailable")
        assert (found["status"], found["reason"]) == ("False", "RouteCreated")
        written = len(upper.asked("patch", "nodes/status"))
        await asyncio.sleep(60)
        assert len(upper.asked("patch", "nodes/status")) == written


@pytest.mark.parametrize(
    ("namespaces", "servers", "is_reported"),
    [
        ({"prefix": "up-"}, [], True),
        ({"map": {"shop": "store"}}, [], True),
        ({"prefix": "up-"}, ["10.97.0.53"], False),
        ({"map": {"shop": "shop"}}, [], False),
        ({}, [], False),
    ],
)
async def test_node_reports_once_that_pods_do_not_find_upper_names(
    namespaces: dict[str, Any], servers: list[str], *, is_reported: bool
):
    """The event names the setting and the command. Later writes of the Node repeat nothing."""
    scene = Scene(*clusters())
    context, caches = scene.context, scene.all_caches
    context.config.namespaces, context.config.dns = NamespaceConfig(**namespaces), DNSConfig(servers=servers)
    health: Any = SimpleNamespace(reachable=True, error="")
    controller = NodeController(
        context, context.nodes["vn"], caches, health=health, addresses=[], kubelet_port=10250
    )
    async with (
        working(caches.lower_nodes.run()),
        working(caches.foreign_pods.run()),
        working(controller.run()),
    ):
        for _ in range(3):
            await asyncio.sleep(100)
            controller.refresh()
    found = [message for reason, message in scene.events if reason == "UpperNamesNotFound"]
    assert len(found) == is_reported
    assert all("changes the namespaces" in text and "lower-cluster dns" in text for text in found)


@pytest.mark.parametrize("is_old", [False, True])
async def test_node_declares_features_without_writes_when_nothing_changes(*, is_old: bool):
    """An older upper API server, which does not store the field, is not asked with every update."""
    upper, lower = clusters()
    scene = Scene(upper, lower)
    context, caches = scene.context, scene.all_caches
    context.lower_version = "v1.37.2"
    health: Any = SimpleNamespace(reachable=True, error="")
    controller = NodeController(
        context, context.nodes["vn"], caches, health=health, addresses=[], kubelet_port=10250
    )
    written = 0

    def observe(commit: Any) -> None:
        nonlocal written
        if commit.plural == "nodes":
            written += 1
            if is_old:
                commit.new["status"].pop("declaredFeatures", None)

    upper.server.observers.insert(0, observe)  # before the watches

    async def writes() -> int:
        before = written
        for _ in range(3):
            await asyncio.sleep(5)
            controller.refresh()
        await asyncio.sleep(1)
        return written - before

    async with (
        working(caches.lower_nodes.run()),
        working(caches.foreign_pods.run()),
        working(controller.run()),
    ):
        lower.put("nodes", _lower_node(ready=True))
        await asyncio.sleep(1)
        assert await writes() == 0
        node = _lower_node(ready=True)
        node["status"]["declaredFeatures"] = ["RestartAllContainersOnContainerExits"]
        lower.put("nodes", node)
        assert await writes() == 1
        is_old = False
        await asyncio.sleep(60)
        found = upper.the("nodes", "vn")["status"]["declaredFeatures"]
        assert found == ["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"]


async def test_an_upgraded_lower_cluster_is_noticed_although_every_ping_gets_an_answer():
    """Its API servers are replaced after each other, and one of them always answers."""
    versions = iter(["v1.36.1", "v1.37.2"])

    async def version() -> dict[str, str]:
        return {"gitVersion": next(versions)}

    async def ping(**_timeout: float) -> None:
        """Always answered."""

    context = Scene(*clusters()).context
    context.lower = SimpleNamespace(ping=ping, version=version)  # type: ignore[assignment]
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    async with working(HealthController(context, changed=changed).run()):
        await asyncio.sleep(55)
        assert (context.lower_version, changes) == ("v1.36.1", 1)
        await asyncio.sleep(10)
        assert (context.lower_version, changes) == ("v1.37.2", 2)
