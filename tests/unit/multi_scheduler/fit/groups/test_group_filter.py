"""Groups start all or none, whatever the order in which the scheduler asks about their pods."""

from __future__ import annotations

from random import Random

import pytest

from tests.thorough import IS_THOROUGH
from tests.unit.multi_scheduler.fit.groups.world import World, pod

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
SEEDS = range(200 if IS_THOROUGH else 8)


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
    assert world.agent.indexes["a"].used["cpu"] == 0
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
    room = sum(world.agent.indexes["a"].cpus().values()) >= 8000
    assert (world.bound(first), world.bound(second)) == ((8, 0) if room else (0, 0))
    ended = groups[first] if room else []
    random.shuffle(ended)
    for one in ended:
        world.finish(one)
        await world.run()
    assert world.bound(second) == (8 if room else 0)
