"""Pods wait for new nodes of one cluster, and only if no cluster has room."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from clusterset.model.autoscaling import Autoscaling, Shape
from clusterset.model.autoscaling import Taint as ShapeTaint
from tests.thorough import seeds
from tests.unit.multi_scheduler.agents.fit.groups.world import World, pod

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
SEEDS = seeds(3, 200)
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def _growth(cores: int = 4, limit: int = 3, **more: Any) -> Autoscaling:
    shape = {key: more.pop(key) for key in ("price", "max_nodes", "taints") if key in more}
    resources = {"cpu": str(cores), "memory": "8Gi"}
    return Autoscaling(
        max_nodes=limit,
        shapes=[Shape(name="small", resources=resources, labels={"pool": "new"}, **shape)],
        **more,
    )


def _pods(number: int, *, first: int = 0, cpu: str = "1") -> list[dict[str, Any]]:
    return [pod(f"p{one}", cpu=cpu) for one in range(first, first + number)]


def _expected(world: World) -> dict[str, int]:
    return {
        cluster: sum(lower.futures.expected().values())
        for cluster, lower in world.agent.state.clusters.items()
    }


def _by_cluster(world: World) -> dict[str, int]:
    nodes = list(world.node_of.values())
    return {node.removeprefix("vn-"): nodes.count(node) for node in sorted(set(nodes))}


async def test_pods_use_free_room_of_all_clusters_first():
    """A cluster that could grow for nothing gets no pod while another one has room."""
    world = World(a=[1], b=[2], growth={"a": _growth()})
    world.create(*_pods(3))
    await world.run()
    assert _by_cluster(world) == {"a": 1, "b": 2}
    assert _expected(world) == {"a": 0, "b": 0}
    assert world.events == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_burst_makes_one_cluster_grow(seed):
    """In every order: as many nodes as needed, all in one cluster, although both have the same price."""
    world = World(random=Random(seed), a=[1], b=[1], growth={"a": _growth(), "b": _growth()})
    world.create(*_pods(12))
    await world.run()
    assert sum(_by_cluster(world).values()) == 12
    assert sorted(_expected(world).values()) == [0, 3]
    assert len(world.events) == 10
    assert world.events[0][1:] == (
        "WaitingForNode",
        f"Waits for a new lower node of shape small behind {world.node_of[world.events[0][0]]}, at most 300 s",
    )


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        ({"price": 2.0}, {"price": 1.0}, "b"),
        ({"price": 1.0, "priority": 0}, {"price": 1.0, "priority": 1}, "b"),
        ({"price": 1.0, "priority": 0}, {"price": 2.0, "priority": 9}, "a"),
        ({"cores": 1}, {"price": 5.0}, "b"),
        ({"taints": [ShapeTaint(key="gpu")]}, {"price": 5.0}, "b"),
    ],
    ids=["price", "priority", "price before priority", "too small", "taint"],
)
async def test_order_of_growing_clusters(a, b, first):
    world = World(a=[], b=[], growth={"a": _growth(**a), "b": _growth(**b)})
    world.create(pod("p", cpu="2"))
    await world.run()
    assert _by_cluster(world) == {first: 1}


async def test_reason_says_why_a_new_node_would_not_help():
    world = World(a=[], growth={"a": _growth(cores=1)})
    world.create(pod("p", cpu="2"))
    await world.run()
    (left,) = world.rejected
    reason = world.reasons[left["metadata"]["uid"]]
    assert "a new node of shape small would not help (Insufficient cpu)" in reason


async def test_never_expects_more_than_max_nodes():
    """Existing nodes count, then the next cluster grows, then pods wait in the upper cluster, with the reason."""
    world = World(a=[], b=[], growth={"a": _growth(limit=2), "b": _growth(limit=1, price=1.0)})
    world.add_node("a", "old", 1, pool="new")
    world.create(*_pods(10))
    await world.run()
    assert _by_cluster(world) == {"a": 5, "b": 4}
    assert _expected(world) == {"a": 1, "b": 1}
    (left,) = world.rejected
    assert "no more nodes of shape small can be added" in world.reasons[left["metadata"]["uid"]]
    world.agent.state.clusters["a"].index.remove_node("old")
    world.agent.state._growing._node_changed(world.agent.state.clusters["a"], "old", {})
    world.event()
    await world.run()
    assert _by_cluster(world) == {"a": 6, "b": 4}


async def test_new_node_takes_the_reservations_when_it_is_usable():
    """Until its taints are removed, its pods wait, and further pods wait for the same node."""
    world = World(a=[], growth={"a": _growth(limit=1)})
    world.create(*_pods(3))
    await world.run()
    world.add_node("a", "n", 4, [NOT_READY], pool="new")
    world.create(*_pods(1, first=3))
    await world.run()
    assert (_expected(world), len(world.node_of)) == ({"a": 1}, 4)
    world.add_node("a", "n", 4, pool="new")
    index = world.agent.state.clusters["a"].index
    assert (_expected(world), index.used["cpu"]) == ({"a": 0}, 4000)
    world.create(*_pods(1, first=4))
    await world.run()
    assert len(world.rejected) == 1, "the room on the new node is reserved"
    world.start_lower()
    await world.later(200)
    assert (index.used["cpu"], len(world.agent.state.reservations)) == (4000, 0)
    assert [reason for _, reason, _ in world.events] == ["WaitingForNode"] * 4


@pytest.mark.parametrize("seed", SEEDS)
async def test_lower_scheduler_may_use_new_nodes_in_another_order(seed):
    """Pods that were expected on the second node get the first one: the others keep the second node."""
    random = Random(seed)
    world = World(random=random, a=[], growth={"a": _growth(limit=3)})
    world.create(*_pods(10))
    await world.run()
    waiting = list(world.node_of)
    for number in range(3):
        world.add_node("a", f"n{number}", 4, pool="new")
        random.shuffle(waiting)
        for uid in waiting[:4]:
            world.land(uid, "a", f"n{number}", {"cpu": 1000, "pods": 1})
        del waiting[:4]
        assert _expected(world)["a"] * 4 + 3 >= len(waiting) >= _expected(world)["a"]
    assert (_expected(world), len(world.agent.state.reservations)) == ({"a": 0}, 0)
    assert world.agent.state.clusters["a"].index.used["cpu"] == 10_000


async def test_gives_up_and_remembers():
    """After ``provisionSeconds`` new pods go elsewhere, until the back-off ends or a node comes after all."""
    world = World(a=[], b=[], growth={"a": _growth(provision_seconds=60), "b": _growth(price=1.0)})
    world.create(pod("first"))
    await world.run()
    world.agent.state.reservations.arrived("first")
    await world.later(62)
    assert [reason for _, reason, _ in world.events] == ["WaitingForNode", "NodeNotAdded"]
    assert world.events[1][2] == (
        "Lower cluster a added no usable node of shape small within 60 s; no pod waits for this shape in the next 300 s"
    )
    assert (_expected(world)["a"], world.agent.state.reservations.homeless("a")) == (0, [("first", "vn-a")])
    world.create(pod("second"))
    await world.run()
    assert world.node_of["second"] == "vn-b"
    world.finish(pod("second"))
    world.agent.state.reservations.release("second")
    await world.later(300)
    world.create(pod("third"))
    await world.run()
    assert world.node_of["third"] == "vn-a"
    world.agent.state.reservations.arrived("third")
    await world.later(62)
    world.add_node("a", "late", 4, pool="new")
    world.agent.state.clusters["a"].index.remove_node("late")
    world.create(pod("fourth"))
    await world.run()
    assert world.node_of["fourth"] == "vn-a", "the late node shows that the shape can be added"


async def test_pods_without_lower_pods_do_not_make_a_shape_fail():
    """A pod that lacks a ConfigMap has no lower pod, so the autoscaler adds no node. The first lower pod starts the time."""
    world = World(a=[], growth={"a": _growth(provision_seconds=60), "b": _growth(price=1.0)})
    world.create(pod("lacks-a-config-map"))
    await world.run()
    await world.later(62)
    assert (_expected(world)["a"], len(world.agent.state.reservations)) == (0, 1)
    world.create(pod("lacks-it-too"))
    await world.run()
    await world.later(50)
    world.create(pod("good"))
    await world.run()
    world.agent.state.reservations.arrived("good")
    await world.later(50)
    assert (world.node_of["good"], _expected(world)["a"]) == ("vn-a", 1)
    assert {reason for _, reason, _ in world.events} == {"WaitingForNode"}
    await world.later(12)
    assert "NodeNotAdded" in {reason for _, reason, _ in world.events}


@pytest.mark.parametrize("end", ["deleted", "lands elsewhere", "lands at once"])
async def test_lower_pods_that_left_do_not_make_a_shape_fail(end):
    """The other pod of the expected node has no lower pod, so the autoscaler adds no node."""
    world = World(a=[], growth={"a": _growth(provision_seconds=60)})
    world.create(pod("leaves"), pod("lacks-a-config-map"))
    await world.run()
    if end != "lands at once":
        world.agent.state.reservations.arrived("leaves")
    await world.later(50)
    if end == "deleted":
        world.finish(pod("leaves"))
    else:
        world.add_node("a", "other", 1)
        world.land("leaves", "a", "other", {"cpu": 1000, "pods": 1})
    await world.later(70)
    waiting = [("lacks-a-config-map", "vn-a")]
    assert (_expected(world)["a"], world.agent.state.reservations.homeless("a")) == (0, waiting)
    assert {reason for _, reason, _ in world.events} == {"WaitingForNode"}
    world.create(pod("good"))
    await world.run()
    assert world.node_of["good"] == "vn-a", "the shape is still used"


async def test_deleted_pods_are_not_waited_for():
    """The last one of a node takes the node with it."""
    world = World(a=[], growth={"a": _growth()})
    world.create(pod("p"))
    await world.run()
    assert _expected(world) == {"a": 1}
    world.finish(pod("p"))
    assert _expected(world) == {"a": 0}


async def test_pods_that_other_schedulers_bound_wait_for_a_node():
    """Also after a restart of the multi-scheduler, which loses the reservations."""
    world = World(a=[], growth={"a": _growth(limit=1)})
    world.create(pod("p", cpu="3"))
    await world.run()
    world.agent.state.reservations.release("p")
    world.agent.state._bound_changed(world.agent.state.bound_pods.informer.store.list()[0], is_new=True)
    world.create(pod("q", cpu="2"))
    await world.run()
    assert (_expected(world), len(world.rejected)) == ({"a": 1}, 1)


async def test_pods_with_required_affinity_wait_for_no_node():
    """Their peers are not on it."""
    world = World(a=[], growth={"a": _growth()})
    one = pod("p")
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
    one["metadata"]["labels"] = {"app": "web"}
    one["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.create(one)
    await world.run()
    assert "waits for no new node" in world.reasons["p"]


@pytest.mark.parametrize("seed", seeds(3, 60))
async def test_group_waits_for_new_nodes_of_one_cluster(seed):
    """Its minimum fits on existing and new nodes of one cluster together; a larger group gets nothing."""
    growth = {"a": _growth(limit=1, price=1.0), "b": _growth(limit=2, price=2.0)}
    world = World(random=Random(seed), a=[2], b=[2], growth=growth)
    world.create(*(pod(f"g{one}", "large", 11) for one in range(11)))
    await world.run()
    assert (world.node_of, _expected(world)) == ({}, {"a": 0, "b": 0})
    assert "lower cluster a has room for 6" in world.reasons["g0"]
    assert "no more nodes of shape small can be added" in world.reasons["g0"]
    world.create(*(pod(f"h{one}", "small", 6) for one in range(6)))
    await world.run()
    assert world.bound("h") == 6
    assert sorted(_by_cluster(world).values()) == [6]
    assert sum(_expected(world).values()) == 1
    assert [reason for _, reason, _ in world.events] == ["WaitingForNode"] * 4
