"""What the API server refuses, and Swarms that wait."""

from __future__ import annotations

import pytest

from clusterset.model.names import SWARMS
from controller_runtime.errors import ApiError, Invalid, Unavailable
from swarm import planning
from swarm.handover import Slot
from tests.unit.swarm.controller.scene import Scene, so


@pytest.mark.parametrize(
    ("plural", "error"),
    [
        ("configmaps", Invalid('ConfigMap "s.w-0" is invalid: metadata.name: too long', code=422)),
        ("leases", Invalid('Lease "s.w-0" is invalid: metadata.name: too long', code=422)),
        (f"{SWARMS.plural}/status", Unavailable("etcdserver: request is too large", code=500)),
    ],
)
async def test_a_refused_object_is_an_event(plural: str, error: ApiError):
    """Without it the Swarm would not progress, and its user would not know why."""
    scene = Scene()
    scene.client.fault = lambda verb, asked, _: (
        error if asked == plural and verb in {"create", "update"} else None
    )
    scene.pod()
    scene.swarm(jobs=[{"name": "a"}])
    async with scene.running():
        await so(
            lambda: any(str(error).partition(":")[0] in text for text in scene.events("NotWritten")), True
        )


def test_slots_that_wait_for_any_ready_pod_cause_no_reconciles():
    """They stay after the grace period, and an event reports a ready pod."""
    workers = planning.Workers(planning.STATEFUL_SET, 2, grace=10)
    found = {
        name: Slot(name=name, index=0, unready_since=since) for name, since in (("a", 100.0), ("b", 95.0))
    }
    assert planning.next_expiry(found, workers, now=103) == 2
    assert planning.next_expiry(found, workers, now=106) == 4
    assert planning.next_expiry(found, workers, now=200) is None
