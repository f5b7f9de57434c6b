"""Groups of Kubernetes itself: kube-scheduler decides about the group, and the extender keeps room until it has decided."""

from __future__ import annotations

from random import Random

import pytest

from clusterset.model.pod.groups import LABEL_POD_GROUP
from controller_runtime.objects import from_dict
from multi_scheduler.agents.fit.members import is_full
from multi_scheduler.extender.protocol import Victims
from tests.thorough import IS_THOROUGH
from tests.unit.multi_scheduler.agents.fit.groups.native import NativeScheduler, gang
from tests.unit.multi_scheduler.agents.fit.groups.world import GROUP, MINIMUM, World, pod

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
SEEDS = range(100 if IS_THOROUGH else 5)


def _used(world: World) -> int:
    """Return the cores that count as used in all lower clusters, by pods and by reservations."""
    return sum(lower.index.used["cpu"] for lower in world.agent.state.clusters.values()) // 1000


@pytest.mark.parametrize("seed", SEEDS)
async def test_gang_uses_the_room_of_several_clusters(seed):
    """Each pod keeps room in one cluster only, so a gang of 16 fits on 10 + 10 places."""
    world = World(random=Random(seed), a=[5, 5], b=[4, 6])
    scheduler, pods = NativeScheduler(world), gang("train", 16)
    scheduler.declare("train", 16)
    scheduler.create(pods)
    await scheduler.cycle(pods, 16)
    assert world.bound("train") == 16


async def test_second_gang_waits_whole_until_the_first_ends():
    """The rejected gang leaves its room to other pods at once, at each attempt, although repeated failures are not written."""
    world = World(a=[10], b=[10])
    scheduler, first, second = NativeScheduler(world), gang("first", 8), gang("second", 16)
    scheduler.declare("first", 8)
    scheduler.declare("second", 16)
    scheduler.create([*first, *second])
    await scheduler.cycle(first, 8)
    for _ in range(3):
        await scheduler.cycle(second, 16)
        assert scheduler.seconds < 1
        assert (world.bound("first"), world.bound("second")) == (8, 0)
        other = pod("other")
        world.create(other)
        await world.ask(other)
        assert (world.bound("other"), _used(world)) == (1, 9)
        world.finish(other)
        world.queue.clear()
    for one in first:
        world.finish(one)
    await scheduler.cycle(second, 16)
    assert world.bound("second") == 16


async def test_room_is_kept_until_all_pods_are_bound():
    """Another pod's call ends the cycle, while the pods of the gang are still being bound."""
    world = World(a=[8], b=[1])
    scheduler, pods = NativeScheduler(world), gang("train", 8)
    scheduler.declare("train", 8)
    scheduler.create(pods)
    chosen, _ = await scheduler._run(pods, 8, without=())
    thief = [pod(f"thief{number}") for number in range(2)]
    world.create(*thief)
    asked = [await world.ask(one) for one in thief]
    assert len(chosen) == 8
    assert sum(map(bool, asked)) == 1
    for uid, node in chosen.items():
        await scheduler._bind(uid, node)
    assert world.bound("train") == 8


@pytest.mark.parametrize(("minimum", "bound"), [(None, 3), (2, 3)])
async def test_pods_above_the_minimum_wait_alone(minimum, bound):
    """With the basic policy, one pod is enough. The room of those that pass is kept."""
    world = World(a=[2], b=[1])
    scheduler, pods = NativeScheduler(world), gang("train", 5)
    scheduler.declare("train", minimum)
    scheduler.create(pods)
    await scheduler.cycle(pods, minimum or 1)
    assert world.bound("train") == bound


async def test_unknown_minimum_keeps_the_room():
    """Without the right to read PodGroups, a rejected gang blocks its room until the scheduler's failure is seen."""
    world = World(a=[4])
    scheduler, pods = NativeScheduler(world), gang("train", 8)
    scheduler.create(pods)
    await scheduler._run(pods, 5, without=())
    other = pod("other")
    world.create(other)
    assert not await world.ask(other)
    for one in pods:
        scheduler._failed(one, "too few", "")
    assert await world.ask(other)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("count", "size", "victims"), [(8, 16, 4), (20, 8, 8), (20, 16, 16), (8, 21, 0)])
async def test_gang_preempts_pods_of_lower_priority(count, size, victims, seed):
    """The scheduler asks again as if they were gone; then it evicts as many as it must, or none."""
    world = World(random=Random(seed), a=[10], b=[10])
    scheduler, low, high = NativeScheduler(world), gang("low", count), gang("high", size, priority=5)
    scheduler.declare("low", 1)
    scheduler.declare("high", size)
    scheduler.create([*low, *high])
    await scheduler.cycle(low, 1)
    world.start_lower()
    evicted = await scheduler.cycle(high, size)
    assert len(evicted) == victims
    assert world.bound("high") == 0
    if not victims:
        return
    # The pods end one after the other. Neither a pod of the same priority as the victims nor a part of the gang gets room.
    for uid in evicted:
        world.finish(scheduler.bodies[uid])
        thief = pod(f"thief-{uid}")
        world.create(thief)
        assert not await world.ask(thief)
        world.delete(thief)
        world.queue.clear()
        if uid != evicted[-1]:
            await scheduler.cycle(high, size)
            assert world.bound("high") == 0
    await scheduler.cycle(high, size)
    assert world.bound("high") == size


async def test_full_virtual_node_is_no_reason_to_evict():
    """A call that the scheduler makes in a normal cycle is answered by the room that is there now."""
    world = World(a=[1, 1, 2])
    scheduler, low = NativeScheduler(world), gang("low", 2)
    scheduler.declare("low", 2)
    scheduler.create(low)
    await scheduler.cycle(low, 2)
    world.start_lower()
    large = pod("high00", cpu="2", priority=5)
    large["spec"]["schedulingGroup"] = {"podGroupName": "high"}
    for number, node in enumerate(("a-2", "a-2")):
        world.land(low[number]["metadata"]["uid"], "a", node, {"cpu": 1000, "pods": 1})
    scheduler.create([large])
    chosen, _ = await scheduler._run([large], 1, without=())
    assert not chosen


async def test_native_group_precedes_groups_of_other_projects():
    """A pod with both is not counted as a member of the other group, bound or pending."""
    world = World(a=[4])
    scheduler = NativeScheduler(world)
    pods = gang("train", 2)
    for one in pods:
        one["metadata"]["labels"] = {LABEL_POD_GROUP: "other"}
        one["metadata"]["annotations"] = {MINIMUM: "8"}
    scheduler.declare("train", 2)
    scheduler.create(pods)
    assert not world.agent.groups.members.pending.groups()
    assert not world.agent.bars_real_nodes(pods[0])
    await scheduler.cycle(pods, 2)
    assert world.bound("train") == 2
    assert len(world.agent.state.bound_pods.of_native_group("shop/train")) == 2
    assert not world.agent.state.bound_pods.of_group("shop/PodGroup/other")


@pytest.mark.parametrize(("places", "bound"), [(4, 0), (8, 8)])
async def test_annotation_adds_a_minimum_to_a_native_group(places, bound):
    """The Job controller may give a Job a PodGroup with the basic policy, which the author of the Job has not asked for."""
    world = World(a=[places], b=[places])
    scheduler, pods = NativeScheduler(world), gang("train", 8)
    for one in pods:
        one["metadata"]["annotations"] = {GROUP: "train", MINIMUM: "8"}
    scheduler.declare("train", None)
    scheduler.create(pods)
    for _ in range(2):
        if left := [one for one in pods if one["metadata"]["uid"] not in world.node_of]:
            await scheduler.cycle(left, 1)
        other = pod("other")
        world.create(other)
        await world.ask(other)
        world.finish(other)
        world.queue.clear()
    assert (world.bound("train"), len(set(world.node_of.values()))) == (bound, 1 if bound else 0)


async def test_only_the_scheduler_chooses_pods_of_a_native_group_as_victims():
    """A single pod preempts those that the scheduler names. Instead of them, only pods without such a group are chosen."""
    world = World(a=[2, 2])
    scheduler, low = NativeScheduler(world), gang("low", 4)
    scheduler.declare("low", 4)
    scheduler.create(low)
    await scheduler.cycle(low, 4)
    world.start_lower()
    high = pod("high", cpu="2", priority=5)
    world.create(high)
    placed = world.agent.state.clusters["a"].index.placed
    on: dict[str, list[str]] = {}
    for uid in world.node_of:
        found = placed(f"lower-shop-{uid}")
        assert found is not None
        on.setdefault(found.node, []).append(uid)
    spread = [uids[0] for uids in on.values()]
    assert await world.extender.preempt(high, {"vn-a": Victims(spread, 0)}) == {}
    together = next(iter(on.values()))
    assert (await world.extender.preempt(high, {"vn-a": Victims(together, 0)}))["vn-a"].uids == together


async def test_victims_on_other_nodes_exclude_a_node():
    """kube-scheduler 1.37 offers whole groups, but fails the call if an extender returns pods of other nodes."""
    world = World(a=[1], b=[1])
    scheduler, low = NativeScheduler(world), gang("low", 2)
    scheduler.declare("low", 2)
    scheduler.create(low)
    await scheduler.cycle(low, 2)
    world.start_lower()
    world.extender.bound_to = world.agent.state.bound_pods.node
    high = pod("high", priority=5)
    world.create(high)
    both = sorted(world.node_of)
    assert await world.extender.preempt(high, {"vn-a": Victims(both, 0), "real": Victims(both, 0)}) == {}


async def test_room_of_a_virtual_node_as_the_scheduler_counts_it():
    """Resources that the node does not have are no reason: the scheduler rejects it for them in any case."""
    one = {"cpu": 1000, "pods": 1, "example.com/gpu": 1}
    assert is_full({"cpu": "2", "pods": "9"}, [one, one], one)
    assert not is_full({"cpu": "3", "pods": "9"}, [one, one], one)
    assert not is_full({}, [one], one)


async def test_old_form_is_native_too():
    """Kubernetes 1.35 names the group in workloadRef."""
    old = pod("old")
    old["metadata"]["labels"] = {LABEL_POD_GROUP: "other"}
    old["spec"]["workloadRef"] = {"name": "w", "podGroup": "workers"}
    world = World(a=[1])
    world.agent.groups.members.pending.informer.change("ADDED", from_dict(old))
    assert not world.agent.groups.members.pending.groups()
