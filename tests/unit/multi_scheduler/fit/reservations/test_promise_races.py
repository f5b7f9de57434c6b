"""Races between watches, attempts and lower schedulers in which a promise could be broken or leaked."""

from __future__ import annotations

from typing import Any

import pytest

from multi_scheduler.fit.reservations.reservations import Stage
from tests.unit.multi_scheduler.fit.reservations.scene import Scene, pod

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
    scene.agent.sweep()
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
    scene.agent.sweep()
    assert scene.reserved("P", "vn-2") == "x"
    assert scene.agent.reservations.stage("P") is Stage.TENTATIVE


async def test_nomination_is_reported_after_the_pod_started():
    """The watch of pending pods is late."""
    scene = Scene("x", "y")
    await scene.place("P")
    scene.lower("P", "x")
    scene.pending(pod("P", nominatedNodeName="vn-1"))
    scene.agent.sweep()
    assert scene.agent.reservations.stage("P") is None


async def test_nominated_pod_is_deleted_before_its_cluster_is_read():
    scene = Scene("x")
    scene.feed._nodes._synced.clear()
    nominated = pod("P", nominatedNodeName="vn-1")
    scene.pending(nominated)
    scene.agent.sweep()
    scene.pending(nominated, "DELETED")
    scene.feed._nodes._synced.set()
    scene.agent.sweep()
    assert scene.agent.reservations.stage("P") is None


async def test_lower_pod_of_a_refused_pod_appears():
    """A quota was increased, and the virtual node created the lower pod before refused pods are checked again."""
    scene = Scene("x")
    quota: Any = {
        "metadata": {"name": "q", "namespace": "store"},
        "status": {"hard": {"pods": "0"}, "used": {"pods": "0"}},
    }
    scene.agent.admissions["a"].upsert_quota(quota)
    scene.bound(pod("P"))
    scene.agent.accounting.prepare("a")
    assert scene.agent.reservations.stage("P") is None
    quota["status"]["hard"] = {"pods": "5"}
    scene.agent.admissions["a"].upsert_quota(quota)
    scene.lower("P")
    assert not await scene.passes(pod("R"))
    assert scene.reserved("P") == "x"
