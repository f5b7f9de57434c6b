"""Groups start all or none, whatever the order in which the scheduler asks about their pods."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from controller_runtime.objects import from_dict
from controller_runtime.workqueue.fairness import TimeBudget
from multi_scheduler.agents.fit.planning import MOST_SECONDS, SHARE
from multi_scheduler.extender.protocol import Victims
from tests.thorough import seeds
from tests.unit.multi_scheduler.agents.fit.groups.world import World, pod

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
SEEDS = seeds(3, 200)


async def test_incomplete_group_waits():
    """The scheduler's event says how many pods are there."""
    world = World(a=[12])
    world.create(*(pod(f"a{number}", "train") for number in range(3)))
    await world.run()
    assert not world.node_of
    assert world.reasons["a0"] == "pod group shop/train has 3 of 8 pods"


async def test_last_pod_of_a_group_lets_all_start():
    """Rejected pods return to the queue when the first one is bound."""
    world = World(a=[12])
    world.create(*(pod(f"a{number}", "train") for number in range(7)))
    await world.run()
    world.create(pod("a7", "train"))
    await world.run()
    assert world.bound("a") == 8


async def test_group_that_does_not_fit_reserves_nothing():
    """A pod without a group gets the room."""
    world = World(a=[6])
    world.create(*(pod(f"a{number}", "train") for number in range(8)))
    await world.run()
    assert world.agent.state.clusters["a"].index.used["cpu"] == 0
    assert world.reasons["a0"] == (
        "pod group shop/train needs room for 8 pods at once; lower cluster a has room for 6: "
        "lower cluster a: 0/1 nodes are available: 1 Insufficient cpu"
    )
    world.create(pod("single", cpu="6"))
    await world.run()
    assert world.bound("single") == 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_two_groups_of_eight_on_twelve_places(seed):
    """In every order exactly one group starts, and the other one after it; never half of both."""
    random = Random(seed)
    world = World(
        random=random, a=[random.choice((4, 5, 6)) for _ in range(2)] + [1] * random.randrange(4), b=[7]
    )
    groups = {name: [pod(f"{name}{number}", name) for number in range(8)] for name in ("x", "y")}
    pods = groups["x"] + groups["y"]
    random.shuffle(pods)
    while pods:
        for _ in range(random.randrange(1, 5)):
            if pods:
                world.create(pods.pop())
        await world.run()
        assert not (world.bound("x") and world.bound("y"))
    first, second = ("x", "y") if world.bound("x") else ("y", "x")
    room = sum(world.agent.state.clusters["a"].index.cpus().values()) >= 8000
    assert (world.bound(first), world.bound(second)) == ((8, 0) if room else (0, 0))
    ended = groups[first] if room else []
    random.shuffle(ended)
    for one in ended:
        world.finish(one)
        await world.run()
    assert world.bound(second) == (8 if room else 0)


async def test_group_gets_room_in_one_zone():
    """Twelve places are free, and only one zone has eight of them."""
    topology: Any = {"virtual-node.io/pod-group-topology": "zone"}
    world = World(a=[(4, "x"), (1, "x"), (4, "y"), (4, "y")])
    world.create(*(pod(f"a{number}", "train", **topology) for number in range(8)))
    await world.run()
    world.start_lower()
    assert world.bound("a") == 8
    index = world.agent.state.clusters["a"].index
    assert {placed.node for uid, placed in index.pods() if uid.startswith("lower-shop-a")} == {"a-2", "a-3"}
    world.create(*(pod(f"b{number}", "other", 6, **topology) for number in range(6)))
    await world.run()
    assert world.bound("b") == 0
    assert "zone=x has room for 5" in world.reasons["b0"]


async def test_replacement_runs_where_the_others_run():
    """A pod of a started group that failed; the other cluster has more room."""
    world = World(a=[12], b=[8])
    group = [pod(f"a{number}", "train") for number in range(8)]
    world.create(*group)
    await world.run()
    home = set(world.node_of.values())
    assert len(home) == 1
    world.finish(group[0])
    world.create(pod("a9", "train"))
    await world.run()
    assert world.node_of["a9"] in home


async def test_group_of_any_scope_uses_several_clusters():
    world = World(a=[4], b=[4])
    scope: Any = {"virtual-node.io/scope": "any"}
    world.create(*(pod(f"a{number}", "train") for number in range(8)))
    world.create(*(pod(f"b{number}", "other", **scope) for number in range(8)))
    await world.run()
    assert (world.bound("a"), world.bound("b")) == (0, 8)


async def test_pods_of_another_scheduler_are_no_members():
    """They never ask for their room, which the group would hold."""
    world = World(a=[12])
    others = [pod(f"a{number}", "train") for number in range(1, 8)]
    for one in others:
        one["spec"]["schedulerName"] = "another-scheduler"
    world.create(*others)
    world.queue.clear()
    world.create(pod("a0", "train"))
    await world.run()
    assert world.reasons["a0"] == "pod group shop/train has 1 of 8 pods"
    assert world.agent.state.clusters["a"].index.used["cpu"] == 0


async def test_domains_that_are_too_small_are_not_tried():
    """A tenant may choose a label with another value on each node, and a large group."""
    topology: Any = {"virtual-node.io/pod-group-topology": "zone"}
    world = World(a=[(4, f"z{number}") for number in range(30)])
    judged = _count_judgements(world)
    world.create(*(pod(f"a{number}", "train", 16, **topology) for number in range(20)))
    await world.run()
    assert "needs room for 16 pods at once; lower cluster a, zone=z0 has room for 4: " in world.reasons["a0"]
    assert len(judged) < 20 * 20


async def test_planning_time_of_a_namespace_is_limited():
    """A group that does not fit costs its namespace the time, and groups of other namespaces continue."""
    world = World(a=[5], b=[60])
    clock = _Clock()
    planner = world.agent.groups.planner
    planner.budget, planner.cpu = TimeBudget(MOST_SECONDS, SHARE, clock), clock
    judged = _count_judgements(world)
    world.create(*(pod(f"a{number}", "train", 90) for number in range(100)))
    for number in range(100):
        world.agent.state.clusters["a"].index.changes += 1  # any change makes an earlier result invalid
        await world.ask(pod(f"a{number}", "train", 90))
    assert "planning the pod groups of namespace shop takes too long" in world.reasons["a99"]
    assert len(judged) < 500
    other = pod("other", "own", 1)
    other["metadata"]["namespace"] = "office"
    world.create(other)
    assert await world.ask(other)
    clock.now += 100
    await world.ask(pod("a0", "train", 90))
    assert "has room for" in world.reasons["a0"]


async def test_unfinished_planning_reserves_and_evicts_nothing():
    """Also if the time is used up while members are placed."""
    world = World(a=[20])
    world.create(*(pod(f"low{number}", cpu="10") for number in range(2)))
    await world.run()
    world.start_lower()
    clock = _Clock()
    planner = world.agent.groups.planner
    planner.budget, planner.cpu = TimeBudget(MOST_SECONDS, SHARE, clock), clock
    clock.step = 0.5
    high = [pod(f"a{number}", "train", 8, priority=9) for number in range(8)]
    world.create(*high)
    await world.ask(high[0])
    found = await world.extender.preempt(high[0], {"vn-a": Victims(["low0"], 0)})
    assert not found
    assert world.agent.state.clusters["a"].index.used["cpu"] == 20_000
    assert not world.agent.groups.held


class _Clock:
    """Seconds, which pass with each question."""

    def __init__(self) -> None:
        self.now, self.step = 1000.0, 0.01

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def _count_judgements(world: World) -> list[str]:
    """Return a list that gets an entry for each later prediction for one pod."""
    state, calls = world.agent.state, list[str]()
    predict = state.predict

    def counted(one: Any, nodes: Any, **options: Any) -> Any:
        calls.append(one["metadata"]["name"])
        return predict(one, nodes, **options)

    state.predict = counted  # type: ignore[method-assign, assignment]
    return calls


async def test_real_nodes_are_barred():
    """Room there cannot be reserved."""
    world = World(a=[12])
    world.names.append("real")
    world.create(pod("single"), pod("a0", "train", 1))
    await world.run()
    assert "real" not in world.reasons["single"]
    assert world.node_of["a0"] == "vn-a"


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
async def test_group_with_precedence_gets_its_room_first(order):
    """Also if the scheduler asks about the other one first: higher priority, then age."""
    world = World(a=[7])
    for name in order:
        world.create(*(pod(f"{name}{number}", name, at=int(name == "new")) for number in range(8)))
    await world.run()
    world.agent.state.clusters["a"].index.upsert_node(
        {"metadata": {"name": "more"}, "status": {"allocatable": {"cpu": "5", "pods": "9"}}}
    )
    world.event()
    await world.run()
    assert (world.bound("old"), world.bound("new")) == (8, 0)


async def test_unused_reservation_expires():
    """Seven members never come, for example because no virtual node matches their selectors."""
    world = World(a=[8])
    world.create(*(pod(f"a{number}", "train") for number in range(8)))
    await world.ask(world.queue[0])
    world.queue.clear()
    world.create(pod("single"))
    await world.run()
    assert not world.bound("single")
    await world.later(61)
    world.event()
    await world.run()
    assert world.bound("single") == 1


async def test_deleted_group_releases_its_room():
    world = World(a=[8])
    group = [pod(f"a{number}", "train") for number in range(8)]
    world.create(*group)
    await world.ask(world.queue[0])
    world.queue.clear()
    world.finish(group[0])
    for one in group[1:]:
        world.delete(one)
    await world.later(4)
    assert world.agent.state.clusters["a"].index.used["cpu"] == 0


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize(("priority", "victims"), [(9, 5), (1, 0)])
async def test_preemption_makes_room_for_the_whole_group_or_evicts_no_pod(priority, victims, is_asked):
    """Nine of twelve places are taken; three of these pods have priority 5, and the others 1.

    Without ``is_asked``, no filter call came before, because the virtual node lacks room for one pod.
    """
    world = World(a=[4, 4, 4])
    there = [pod(f"p{number}", priority=5 if number < 3 else 1) for number in range(12)]
    world.create(*there)
    await world.run()
    world.start_lower()
    for one in there[7:10]:
        world.finish(one)
    group = [pod(f"a{number}", "train", priority=priority if number else 9) for number in range(8)]
    world.create(*group[:7])
    assert await world.extender.preempt(group[0], {"vn-a": Victims(["p11"], 0)}) == {}
    world.create(*group[7:])
    if is_asked:
        await world.run()
    found = await world.extender.preempt(group[0], {"vn-a": Victims(["p11"], 0)})
    chosen = set(found["vn-a"].uids) if found else set()
    assert len(chosen) == victims
    assert not chosen & {"p0", "p1", "p2"}
    assert await world.extender.preempt(group[1], {"vn-a": Victims(["p11"], 0)}) == {}
    world.create(pod("thief"))
    await world.run()
    for one in there:
        if one["metadata"]["uid"] in chosen:
            assert world.bound("a") == 0
            world.finish(one)
            await world.run()
    assert (world.bound("a"), world.bound("thief")) == ((8, 0) if victims else (0, 1))


async def test_members_that_are_being_bound_cause_no_second_preemption():
    """A member is neither pending nor bound for a moment, because these come by two watches."""
    world = World(a=[4, 4, 4])
    there = [pod(f"p{number:02}") for number in range(12)]
    world.create(*there)
    await world.run()
    world.start_lower()
    group = [pod(f"a{number}", "train", priority=9) for number in range(8)]
    world.create(*group)
    found = await world.extender.preempt(group[0], {"vn-a": Victims(["p11"], 0)})
    for one in there:
        if one["metadata"]["uid"] in found["vn-a"].uids:
            world.finish(one)
    assert await world.ask(group[0])
    world.agent.groups.members.pending.informer.change("DELETED", from_dict(group[1]))
    left = next(one for one in there if one["metadata"]["uid"] in world.node_of)
    again = await world.extender.preempt(group[7], {"vn-a": Victims([left["metadata"]["uid"]], 0)})
    assert again == {}
    assert await world.ask(group[7])


async def test_pods_of_another_group_cannot_cause_an_error():
    """A tenant's malformed pods are not the problem of other tenants."""
    world = World(a=[12])
    bad = [pod(f"bad{number}", "bad", at=0) for number in range(8)]
    for one in bad:
        one["spec"]["containers"] = ["text"]
    world.create(*bad)
    await asyncio.gather(world.ask(bad[0]), return_exceptions=True)
    world.queue.clear()
    world.create(*(pod(f"a{number}", "train", at=9) for number in range(8)))
    await world.run()
    assert world.bound("a") == 8


async def test_bound_pods_select_the_domain_of_their_group():
    """If the extender binds them; the pod's own selector and tolerations stay."""
    world = World(a=[(4, "x"), (9, "y")])
    topology: Any = {"virtual-node.io/pod-group-topology": "zone"}
    own: Any = {"clusterSelector": '{"nodeSelector": {"disk": "ssd"}}'}
    plain = [pod(f"a{number}", "train", **topology) for number in range(8)]
    plain[0]["spec"]["tolerations"] = [
        {"key": "virtual-kubelet.io/provider", "operator": "Exists"},
        {"key": "gpu", "operator": "Exists"},
    ]
    world.create(*plain)
    await world.ask(world.queue[1])
    found = world.agent.annotations("a0", "vn-a")
    assert json.loads(found["clusterSelector"]) == {
        "nodeSelector": {"zone": "y"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    world.create(pod("a8", "train", **topology, **own))
    found = world.agent.annotations("a8", "vn-a")
    assert json.loads(found["clusterSelector"]) == {"nodeSelector": {"disk": "ssd", "zone": "y"}}
    assert world.agent.annotations("unknown", "vn-a") == {}
