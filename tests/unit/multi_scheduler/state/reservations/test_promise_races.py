"""Races between watches, attempts and lower schedulers in which a promise could be broken or leaked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from multi_scheduler.state.reservations import Stage
from tests.unit.multi_scheduler.state.reservations.scene import Scene, failed, pod

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_pod_that_prefers_a_node_returns_to_it():
    """P of two cores prefers x, and moves to y while a lower user uses x: the lower scheduler will still choose x."""
    scene = Scene("x", binds=True)
    small = pod("P", "2")
    assert await scene.passes(small)
    assert await scene.extender.bind("shop", "P", "P", "vn-1") == ""
    scene.bound(small)
    scene.node("y", 2)
    scene.native("x")
    scene.agent.state.sweep()
    assert scene.reserved("P") == "y"
    scene.native("x", kind="DELETED")
    assert not await scene.passes(pod("Q"))
    assert scene.reserved("P") == "x"


async def test_nomination_is_reported_after_the_next_attempt_passed_elsewhere():
    """The room of the attempt stays reserved."""
    scene = Scene("x")
    scene.pending(pod("P"))
    assert await scene.passes(pod("P"), "vn-2")
    scene.pending(pod("P", nominatedNodeName="vn-1"), "MODIFIED")
    scene.agent.state.sweep()
    assert scene.reserved("P", "vn-2") == "x"
    assert scene.agent.state.reservations.stage("P") is Stage.TENTATIVE


async def test_nomination_is_reported_after_the_pod_started():
    """The watch of pending pods is late."""
    scene = Scene("x", "y")
    await scene.place("P")
    scene.lower("P", "x")
    scene.pending(pod("P", nominatedNodeName="vn-1"))
    scene.agent.state.sweep()
    assert scene.agent.state.reservations.stage("P") is None


async def test_nominated_pod_is_deleted_before_its_cluster_is_read():
    scene = Scene("x")
    scene.feed._nodes._synced.clear()
    nominated = pod("P", nominatedNodeName="vn-1")
    scene.pending(nominated)
    scene.agent.state.sweep()
    scene.pending(nominated, "DELETED")
    scene.feed._nodes._synced.set()
    scene.agent.state.sweep()
    assert scene.agent.state.reservations.stage("P") is None


async def test_lower_pod_of_a_refused_pod_appears():
    """A quota was increased, and the virtual node created the lower pod before refused pods are checked again."""
    scene = Scene("x")
    quota: Any = {
        "metadata": {"name": "q", "namespace": "store"},
        "status": {"hard": {"pods": "0"}, "used": {"pods": "0"}},
    }
    scene.agent.state.clusters["a"].admission.upsert_quota(quota)
    scene.bound(pod("P"))
    scene.agent.state.accounting.prepare("a")
    assert scene.agent.state.reservations.stage("P") is None
    quota["status"]["hard"] = {"pods": "5"}
    scene.agent.state.clusters["a"].admission.upsert_quota(quota)
    scene.lower("P")
    assert not await scene.passes(pod("R"))
    assert scene.reserved("P") == "x"


async def test_no_room_is_reserved_for_a_refused_pod_while_its_cluster_is_not_read():
    """Its quotas are forgotten, too, when a cluster has too many objects, and a reservation would never end."""
    scene = Scene("x")
    quota: Any = {
        "metadata": {"name": "q", "namespace": "store"},
        "status": {"hard": {"pods": "0"}, "used": {"pods": "0"}},
    }
    admission = scene.agent.state.clusters["a"].admission
    admission.upsert_quota(quota)
    scene.bound(pod("P"))
    scene.agent.state.sweep()
    scene.feed._nodes._synced.clear()
    admission.remove_quota("store", "q")
    scene.agent.state.sweep()
    admission.upsert_quota(quota)
    scene.feed._nodes._synced.set()
    scene.agent.state.sweep()
    assert scene.agent.state.reservations.stage("P") is None
    quota["status"]["hard"] = {"pods": "5"}
    admission.upsert_quota(quota)
    scene.agent.state.sweep()
    assert scene.agent.state.reservations.stage("P") is Stage.BOUND


async def test_pod_is_deleted_while_its_filter_call_waits():
    """Q would hold its room for 15 minutes."""
    scene = Scene("x")
    following = asyncio.create_task(scene.agent.attempts.run())
    scene.pending(pod("P"))
    scene.pending(pod("Q"))
    assert await scene.passes(pod("P"))
    asking = asyncio.ensure_future(scene.passes(pod("Q")))
    await asyncio.sleep(0.1)
    scene.pending(pod("Q"), "DELETED")
    scene.pending(pod("P", **failed("a plug-in failed")), "MODIFIED")
    await asking
    await asyncio.sleep(5)
    assert await scene.passes(pod("R"))
    following.cancel()


async def test_bound_pod_is_deleted_while_no_watch_reports_it():
    """The watch of bound pods restarts with a list that no longer contains P."""
    scene = Scene("x", binds=True)
    following = asyncio.create_task(scene.agent.attempts.run())
    scene.pending(pod("P"))
    assert await scene.passes(pod("P"))
    assert await scene.extender.bind("shop", "P", "P", "vn-1") == ""
    scene.exists = [pod("P", node="vn-1")]
    scene.pending(pod("P"), "DELETED")
    await asyncio.sleep(60)
    assert not await scene.passes(pod("R"))
    scene.exists = []
    await asyncio.sleep(60)
    assert await scene.passes(pod("R"))
    following.cancel()


async def test_room_is_lost_just_before_the_binding():
    scene = Scene("x", binds=True)
    assert await scene.passes(pod("P"))
    scene.index.remove_node("x")
    assert "no room is reserved" in await scene.extender.bind("shop", "P", "P", "vn-1")


@pytest.mark.parametrize("binds", [False, True])
async def test_places_of_one_pod_on_one_lower_node_do_not_displace_each_other(binds):
    """Two virtual nodes represent the cluster, and the pod uses only one of them."""
    scene = Scene("x", binds=binds)
    assert await scene.passes(pod("P"), "vn-1", "vn-2")
    scene.node("x", 5)
    scene.agent.state.sweep()
    node = "vn-1" if scene.reserved("P", "vn-2") else "vn-2"
    if binds:
        assert await scene.extender.bind("shop", "P", "P", node) == ""
    scene.bound(pod("P"), node)
    assert (scene.reserved("P", node), scene.events) == ("x", [])


def _member(uid: str, cpu: str = "4") -> dict[str, Any]:
    """Return a pod of a group of two."""
    found = pod(uid, cpu)
    found["metadata"]["annotations"] = {
        "virtual-node.io/pod-group": "g",
        "virtual-node.io/min-members": "2",
    }
    return found


async def test_group_is_planned_again_while_a_member_is_held():
    """A is being bound, and B is replaced by a pod that fits nowhere: A keeps its room."""
    scene = Scene("x", "y")
    following = asyncio.create_task(scene.agent.attempts.run())
    for member in (_member("A"), _member("B")):
        scene.pending(member)
    assert await scene.passes(_member("A"))
    scene.pending(_member("B"), "DELETED")
    await asyncio.sleep(2)
    scene.pending(_member("C", "8"))
    assert not await scene.passes(_member("C", "8"))
    for uid in ("R", "S"):
        scene.pending(pod(uid))
    assert [await scene.passes(pod(uid)) for uid in ("R", "S")] == [True, False]
    following.cancel()


async def test_member_that_is_being_bound_counts_for_its_group():
    """A is being bound when B is replaced by C: C gets the other room, and A keeps its own."""
    scene = Scene("x", "y", "z")
    following = asyncio.create_task(scene.agent.attempts.run())
    for member in (_member("A"), _member("B")):
        scene.pending(member)
    assert await scene.passes(_member("A"))
    before = scene.reserved("A")
    scene.pending(_member("B"), "DELETED")
    await asyncio.sleep(2)
    scene.pending(_member("C"))
    assert await scene.passes(_member("C"))
    assert scene.reserved("A") == before
    assert scene.agent.groups.held.node("A") is not None
    following.cancel()


async def test_pod_moves_others_for_one_virtual_node_of_a_cluster_only():
    """P of pool 1 needs Q to move to y, and P of pool 2 needs R to move there: y has room for one of them."""
    scene = Scene("y", pools={"vn-p1": {"pool": "1"}, "vn-p2": {"pool": "2"}})
    scene.node("y", 0)
    for number in "12":
        scene.node(f"x{number}", labels={"pool": number})
    for uid in ("Q", "R"):
        assert await scene.passes(pod(uid, "2"))
    assert {scene.reserved("Q"), scene.reserved("R")} == {"x1", "x2"}
    scene.node("y", 2)
    assert await scene.passes(pod("P"), "vn-p1", "vn-p2")
    free = scene.index.free("cpu")
    assert all(count >= 0 for count in free), free


async def test_pod_of_higher_priority_keeps_the_room_of_a_nominated_pod():
    scene = Scene("x")
    scene.pending(pod("N", nominatedNodeName="vn-1"))
    scene.agent.state.sweep()
    assert scene.agent.state.reservations.stage("N") is Stage.NOMINATED
    assert await scene.passes(pod("H", priority=9))
    scene.agent.state.sweep()
    assert (scene.reserved("N"), scene.reserved("H")) == ("", "x")
    scene.agent.state.reservations.release("H")
    scene.agent.state.sweep()
    assert scene.reserved("N") == "x"


async def test_reservation_that_moves_displaces_the_nominated_pod_of_lower_priority():
    """H takes the room that is reserved for N on x, and Q moves to N's room on y."""
    scene = Scene("x")
    scene.pending(pod("N", nominatedNodeName="vn-1"))
    scene.agent.state.sweep()
    assert scene.agent.state.reservations.stage("N") is Stage.NOMINATED
    scene.node("y", 6)
    assert await scene.passes(pod("Q", "2"))
    assert (scene.reserved("N"), scene.reserved("Q")) == ("x", "y")
    assert await scene.passes(pod("H", "6", priority=9))
    scene.agent.state.sweep()
    assert (scene.reserved("N"), scene.reserved("Q"), scene.reserved("H")) == ("", "x", "y")
