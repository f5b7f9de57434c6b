"""Random stories, and what must hold in each of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

from multi_scheduler.state.reservations import Stage
from tests.unit.multi_scheduler.simulation.lower import LowerCluster, LowerPod, Node
from tests.unit.multi_scheduler.simulation.world import LATE, UpperPod, World
from tests.unit.simulation.clock import VirtualLoop

_QUIET = 60.0
"""Seconds without actions after which every process has finished its work."""


def simulate(
    seed: int, *, binds: bool | None = None, disturbs: bool | None = None, ignoring: float = 0.0
) -> World:
    """Play one story; return the world, whose ``wrong`` is empty if all promises were kept.

    Args:
        seed: determines all choices.
        binds: whether the extender binds; None: by the seed.
        disturbs: whether lower users and administrators take room, and processes fail; None: by the seed.
        ignoring: probability that a lower scheduler ignores a preferred node with room.
    """
    random = Random(seed)
    binds = random.random() < 0.75 if binds is None else binds
    disturbs = random.random() < 0.5 if disturbs is None else disturbs
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_play(random, binds=binds, disturbs=disturbs, ignoring=ignoring))
    finally:
        loop.close()


async def _play(random: Random, *, binds: bool, disturbs: bool, ignoring: float) -> World:
    world = World(random, binds, ignoring)
    tasks = [asyncio.create_task(world.schedule()), asyncio.create_task(world.run_lower())]
    await asyncio.sleep(2)
    for burst in range(random.randint(1, 4)):
        # Pods that wait for their lower pods when something changes are the difficult ones.
        world.is_virtual_node_down = disturbs and random.random() < 0.4
        for number in range(random.randint(3, 12)):
            cpu = random.choice((1, 2, 3, 4)) if binds else 4
            node = ""
            if disturbs and random.random() < 0.08:
                node = random.choice([f"vn-{name}" for name in world.clusters])
                world.clusters[node.removeprefix("vn-")].disturbed = asyncio.get_running_loop().time() + 1
            world.create(UpperPod(f"b{burst}p{number}", cpu, binds and random.random() < 0.2, node))
            await asyncio.sleep(random.choice((0.0, 0.02, 0.2, 0.5)))
            if disturbs and random.random() < 0.1:
                _disturb(world, random)
        for _ in range(random.randint(0, 3)):
            await asyncio.sleep(random.random() * 3)
            if world.pods and random.random() < 0.6:
                world.delete(random.choice(list(world.pods)))
            if disturbs:
                _disturb(world, random)
        await asyncio.sleep(random.choice((0.0, 1.0, 20.0)))
    world.is_virtual_node_down = False
    await asyncio.sleep(_QUIET)
    _check_quiet(world)
    for task in (*tasks, *world.tasks):
        task.cancel()
    return world


def _disturb(world: World, random: Random) -> None:
    """Take or give room in a lower cluster, or let a process fail."""
    cluster = random.choice(list(world.clusters.values()))
    now = asyncio.get_running_loop().time()
    kind = random.choice(
        ("native", "native", "native ends", "cordon", "shrink", "remove", "add", "up", "restart", "forge")
    )
    world.log(f"{kind} in {cluster.name}")
    late = now + LATE
    name = random.choice(list(cluster.nodes)) if cluster.nodes else ""
    natives = [pod.name for pod in cluster.pods.values() if not pod.upper]
    if kind in {"native", "forge"}:
        waiting = [uid for uid, pod in world.pods.items() if pod.node and uid not in cluster.pods]
        claimed = random.choice(waiting) if kind == "forge" and waiting else ""
        cluster.create(LowerPod(f"native-{now}", random.choice((1, 2, 4)), claims=claimed))
        cluster.disturbed = late
    elif kind == "native ends" and natives:
        cluster.delete(random.choice(natives))
    elif kind == "cordon" and name:
        node = cluster.nodes[name]
        cluster.put(replace(node, is_cordoned=not node.is_cordoned))
        cluster.disturbed = late
    elif kind == "shrink" and name:
        cluster.put(replace(cluster.nodes[name], cpu=random.choice((2, 4, 8))))
        cluster.disturbed = late
    elif kind == "remove" and len(cluster.nodes) > 1:
        cluster.remove_node(name)
        cluster.disturbed = late
    elif kind == "add":
        cluster.put(Node(f"{cluster.name}-x{now}", random.choice((4, 8)), random.random() < 0.4))
    elif kind == "up":
        world.is_virtual_node_down = False
    elif kind == "restart":
        world.restart()


def _check_quiet(world: World) -> None:
    """Check what must hold when nothing happens any more."""
    for name, cluster in world.clusters.items():
        claims = 0
        for pod in world.pods.values():
            if pod.node != f"vn-{name}":
                continue
            lower = cluster.pods.get(pod.uid)
            if lower is None:
                world.wrong.append(f"{pod.uid} has no lower pod")
            elif not lower.node:
                claims += 1
                if world.agent.state.reservations.stage(pod.uid) is not Stage.BOUND:
                    world.wrong.append(f"{pod.uid} waits in {name}, and its claim is forgotten")
            elif world.agent.state.reservations.stage(pod.uid) is not None:
                world.wrong.append(f"{pod.uid} runs in {name}, and still has a reservation")
        reserved = {key for key, _ in world.agent.state.clusters[name].index.pods() if "@" in key}
        for pod in world.pods.values():
            if pod.node or pod.uid in world.stalled or claims or reserved:
                continue
            if _could_run(cluster, pod) and world._total(cluster) >= pod.cpu:
                world.wrong.append(f"{pod.uid} ({pod.cpu}) waits although {name} has room")


def _could_run(cluster: LowerCluster, pod: UpperPod) -> bool:
    return bool(cluster.fitting(LowerPod(pod.uid, pod.cpu, needs_fast=pod.needs_fast)))
