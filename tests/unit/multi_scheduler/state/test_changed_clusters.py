"""Lower clusters that are added and removed while the extender runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.objects import from_dict
from multi_scheduler.bound_pods import shrink
from multi_scheduler.state.reservations import Stage
from tests.background import working
from tests.unit.multi_scheduler.agents.fit.groups.world import World, pod


async def _remove(world: World, cluster: str) -> tuple[Any, Any]:
    """Remove a cluster; return its configuration and client."""
    lower = world.agent.state.clusters[cluster]
    await world.agent.state.remove(cluster)
    return lower.config, lower.client


async def test_room_in_a_removed_cluster_is_released() -> None:
    """The pod's room in another cluster stays, and later pods are not offered the removed cluster."""
    world = World(a=[4], b=[4])
    state = world.agent.state
    nodes = [node for name in ("vn-a", "vn-b") if (node := state.node(name)) is not None]
    await world.agent.filter(pod("p"), nodes)
    assert state.reservations.tentative("a")
    await _remove(world, "a")
    assert state.reservations.stage("p") is Stage.TENTATIVE
    assert not state.reservations.tentative("a")
    assert state.node("vn-a") is None
    state.sweep()
    found = await world.agent.score(pod("p"), nodes)
    assert list(found) == ["vn-b"]


async def test_group_gets_no_room_in_a_removed_cluster() -> None:
    world = World(a=[8])
    world.create(pod("a0", "train", 2), pod("a1", "train", 2))
    await world.run()
    assert world.node_of == {"a0": "vn-a", "a1": "vn-a"}
    await _remove(world, "a")
    group = world.agent.groups.group(pod("a0", "train", 2))
    assert group is not None
    assert world.agent.groups.members.homes(group).clusters == frozenset()
    world.agent.state.sweep()


async def test_bound_pods_of_an_added_cluster_are_counted() -> None:
    """Their watch reported them before the cluster was known."""
    world = World(a=[4], b=[4])
    state = world.agent.state
    virtual = state.node("vn-a")
    config, client = await _remove(world, "a")
    body = {**pod("p"), "status": {"phase": "Pending"}}
    state.bound_pods.informer.change(
        "ADDED", shrink(from_dict({**body, "spec": {**body["spec"], "nodeName": "vn-a"}}))
    )
    assert state.reservations.stage("p") is None
    assert virtual is not None
    state._known_nodes["vn-a"] = virtual
    state.add(config, client, ())
    for informer in state.clusters["a"].feed.informers:
        informer._synced.set()
    world.add_node("a", "a-0", 4, zone="z")
    state.accounting.prepare("a")
    assert state.reservations.stage("p") is Stage.BOUND


@pytest.mark.looptime
async def test_only_the_task_of_a_changed_cluster_starts_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[str] = []

    async def run(lower: Any, *, measures: bool) -> None:
        assert measures
        running.append(lower.config.name)
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(lower.config.name)

    monkeypatch.setattr("multi_scheduler.state.lower_state.LowerState.run", run)
    world = World(a=[4], b=[4])
    async with working(world.agent.state.run_lower(measures=True)):
        await asyncio.sleep(1)
        assert running == ["a", "b"]
        config, client = await _remove(world, "a")
        assert running == ["b"]
        world.agent.state.add(config, client, ())
        await asyncio.sleep(1)
        assert running == ["b", "a"]
