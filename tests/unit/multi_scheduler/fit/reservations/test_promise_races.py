"""Races between watches, attempts and lower schedulers in which a promise could be broken or leaked."""

from __future__ import annotations

import pytest

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
