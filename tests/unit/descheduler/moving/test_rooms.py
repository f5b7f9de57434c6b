"""Booked room: waiting pods and the successors of moved pods are counted before they are bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.objects import Object
from tests.unit.descheduler.bodies import node, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

pytestmark = pytest.mark.looptime


def body(name: str, cpu: str, *, on: str = "a", owner: str = "rs", **fields: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}
    return pod(name, on=on, owner=owner, spec=spec, refused_at=None, **fields)


def setting(*bodies: dict[str, Any]) -> tuple[Cluster, Process]:
    """Return a lost node a, nodes b with 10 CPUs and c with 2, and a process."""
    cluster = Cluster()
    for name, cpu in (("a", "10"), ("b", "10"), ("c", "2")):
        cluster.put("nodes", node(name, cpu=cpu, ready=name != "a"))
    for one in bodies:
        cluster.put("pods", one)
    return cluster, Process(cluster)


async def take(process: Process, name: str) -> str:
    found = of(process, name)
    return await process.mover.rooms.take(found, process.view.alternatives(found))


def of(process: Process, name: str) -> Object:
    found = process.view.pods.store.get(f"default/{name}")
    assert found is not None
    return found


FULL = "no other ready virtual node has room for it: b lacks cpu, c lacks cpu"


async def test_bound_terminating_and_waiting_pods_take_room():
    cluster, process = setting(
        body("moves", "4"),
        body("bound", "2", on="b"),
        body("ends", "2", on="b"),
        body("waits", "3", on=""),
        body("ended", "4", on="b", phase="Succeeded"),
    )
    cluster.dead_nodes.add("b")
    cluster.delete("pods", "default/ends")
    async with process.running():
        assert await take(process, "moves") == FULL
        cluster.remove("pods", "default/ends")
        await asyncio.sleep(2)
        assert await take(process, "moves") == ""


async def test_pods_take_room_only_on_nodes_that_admit_them():
    elsewhere = body("elsewhere", "9", on="")
    elsewhere["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "a"}
    real = body("real", "9", on="")
    real["spec"]["tolerations"] = []
    _, process = setting(body("moves", "8"), elsewhere, real)
    async with process.running():
        assert await take(process, "moves") == ""


async def test_successor_has_room_until_it_exists():
    cluster, process = setting(body("first", "6"), body("second", "6"), body("third", "2", owner="other"))
    async with process.running():
        assert await take(process, "first") == ""
        assert await take(process, "second") == FULL
        cluster.remove("pods", "default/first")
        await asyncio.sleep(50)
        assert await take(process, "second") == FULL  # its owner is slow
        cluster.put("pods", body("successor", "6", on=""))
        await asyncio.sleep(2)
        assert await take(process, "second") == FULL  # it waits for its node
        assert await take(process, "third") == ""
        cluster.put("pods", body("successor", "6", on="b"))
        await asyncio.sleep(2)
        assert await take(process, "second") == FULL


async def test_booked_room_is_free_again_if_no_successor_comes():
    cluster, process = setting(body("first", "6"), body("second", "6"))
    async with process.running():
        assert await take(process, "first") == ""
        cluster.remove("pods", "default/first")
        await asyncio.sleep(62)
        assert await take(process, "second") == ""


async def test_room_of_pod_that_was_not_moved_is_given_back():
    _, process = setting(body("first", "6"), body("second", "6"))
    async with process.running():
        assert await take(process, "first") == ""
        process.mover.rooms.give_back(of(process, "first"))
        process.mover.rooms.give_back(of(process, "first"))
        assert await take(process, "second") == ""
        assert await take(process, "first") == FULL


async def test_second_booking_of_a_pod_replaces_the_first():
    _, process = setting(body("first", "6"))
    async with process.running():
        assert await take(process, "first") == ""
        assert await take(process, "first") == ""


async def test_concurrent_bookings_share_the_room():
    names = [f"p{number}" for number in range(6)]
    _, process = setting(*(body(name, "4") for name in names))
    async with process.running():
        found = await asyncio.gather(*(take(process, name) for name in names))
        assert sorted(found) == ["", "", *[FULL] * 4]
