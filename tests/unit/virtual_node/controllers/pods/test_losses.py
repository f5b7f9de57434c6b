"""Back-off of owners that lose pods in the lower cluster again and again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from controller_runtime.apimachinery import timestamps
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene, pod, running
from virtual_node.controllers.pods.refusals import Losses

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
_DRAINED = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]


def losses(*moments: float, lived: float = 1.0) -> Losses:
    """Return what is known after losses of pods that lived for some seconds."""
    made = Losses()
    for now in moments:
        made.lost("rs", created_at=now - lived, now=now)
    return made


@pytest.mark.parametrize(
    ("moments", "now", "pause"),
    [
        ([], 100, 0),
        ([100], 100, 0),
        ([100, 102], 102, 10),
        ([100, 102], 107, 5),
        ([100, 102], 112, 0),
        ([100, 102, 114], 114, 20),
        ([100, 102, 114, 136], 136, 40),
        ([100 + 350 * number for number in range(20)], 100 + 350 * 19, 300),
        ([100, 102, 800], 800, 0),
    ],
)
def test_pause_doubles_and_ends_after_a_quiet_time(moments, now, pause):
    """As a kubelet's CrashLoopBackOff, but the first replacement does not wait."""
    assert losses(*moments).pause("rs", now) == pause


def test_pods_that_are_lost_together_count_once():
    """A program deletes all 100 pods of the owner, twice."""
    made = Losses()
    for created, lost in ((10.0, 20.0), (21.0, 30.0)):
        for number in range(100):
            made.lost("rs", created_at=created, now=lost + number / 100)
    assert made.delay("rs") == 10


@pytest.mark.parametrize(("owner", "created_at"), [("", 99.0), ("rs", 0.0), ("rs", 100.0 - 600.0)])
def test_others_do_not_count(owner, created_at):
    """A bare pod has no replacement. A pod that ran long, or with an unknown age, is no repeated loss."""
    made = Losses()
    for _ in range(5):
        made.lost(owner, created_at=created_at, now=100.0)
    assert made.pause(owner, 100.0) == 0


def test_owners_are_bounded_and_separate():
    """A tenant can create any number of owners."""
    made = losses(100, 102)
    for number in range(10_000):
        made.lost(f"o{number}", created_at=102.5, now=103.0)
    assert len(made._owners) == 4096
    assert made.pause("rs", 103.0) == 0
    assert made.pause("o9999", 103.0) == 0


@pytest.mark.looptime
async def test_next_pods_of_the_owner_wait_and_say_why():
    """The third pod is created 10 s after the second one was lost; pods of others are created at once."""
    async with running() as scene:
        scene.lower.put("nodes", {"metadata": {"name": "n1", "creationTimestamp": "2025-01-01T00:00:00Z"}})
        await asyncio.sleep(1)
        await _lose_two(scene)
        _bind(scene, "web-2")
        scene.bind("other", uid="u-other")
        await asyncio.sleep(5)
        assert scene.is_below("other")
        assert not scene.is_below("web-2")
        state = scene.above("web-2")["status"]["containerStatuses"][0]["state"]["waiting"]
        assert state["reason"] == "LowerPodLostBackOff"
        assert [one for one, _ in scene.events].count("LowerPodLostBackOff") == 1
        message = next(text for reason, text in scene.events if reason == "LowerPodLostBackOff")
        assert "Pods of ReplicaSet web are deleted in lower cluster lower1" in message
        await asyncio.sleep(6)
        assert scene.is_below("web-2")


@pytest.mark.looptime
async def test_pods_of_removed_nodes_are_replaced_at_once():
    """Nodes of a pool may be removed every few minutes. Their pods end by disruptions, for which owners do not wait."""
    async with running() as scene:
        await asyncio.sleep(1)
        await _lose_two(scene)
        _bind(scene, "web-2")
        await asyncio.sleep(1)
        assert scene.is_below("web-2")


@pytest.mark.looptime
@pytest.mark.parametrize(("disruption", "is_created"), [([], False), (_DRAINED, True)])
async def test_owner_waits_for_pods_that_a_program_deletes_with_a_long_grace_period(disruption, is_created):
    """Their upper pods are deleted before they have ended, as often as the program deletes them. A drain is no such loss."""
    async with running() as scene:
        await asyncio.sleep(1)
        for number in range(2):
            _bind(scene, f"web-{number}")
            await asyncio.sleep(1)
            until = timestamps.rfc3339(datetime.now(UTC) + timedelta(hours=1))
            deleting = {"deletionTimestamp": until, "deletionGracePeriodSeconds": 3600}
            status = {"phase": "Running", "conditions": disruption}
            scene.lower.change("pods", f"shop/web-{number}", metadata=deleting, status=status)
            await asyncio.sleep(44)
            assert "deletionTimestamp" in scene.above(f"web-{number}")["metadata"]
        _bind(scene, "web-2")
        await asyncio.sleep(1)
        assert scene.is_below("web-2") == is_created


async def _lose_two(scene: Scene) -> None:
    """Delete two lower pods of the owner, one after the other."""
    for number in range(2):
        _bind(scene, f"web-{number}")
        await asyncio.sleep(1)
        key = f"shop/web-{number}"
        scene.lower.change("pods", key, spec={**scene.lower.the("pods", key)["spec"], "nodeName": "n1"})
        await asyncio.sleep(1)
        scene.lower.remove("pods", key)
        await asyncio.sleep(1)


def _bind(scene: Scene, name: str) -> None:
    body = pod(name, uid=f"u-{name}", nodeName=scene.node)
    body["metadata"]["ownerReferences"] = [OWNER]
    scene.upper.put("pods", body)
