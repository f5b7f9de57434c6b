"""When the controller reassigns the jobs of a silent worker."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.controller.owned_objects import ANNOTATION_ENDED
from swarm.controller.reports import Reports
from swarm.handover.ledger import Holder, Ledger


class Scene:
    """One worker's cached Lease, and the record."""

    def __init__(self) -> None:
        self.now = 0.0
        self.renews = False
        """Whether the worker renews its Lease before the controller writes."""
        self.ended: list[str] = []
        self.ledger = Ledger(holders={"u": Holder(pod="w", uid="u", session="s", life=1, start=["a"])})
        self.spec: Any = SimpleNamespace(fence_seconds=10, workers=SimpleNamespace(http_port=0))
        self.lease = SimpleNamespace(uid="lease", resource_version="1", annotations={})
        self.report = {
            "podUid": "u",
            "podUID": "u",
            "session": "s",
            "life": 1,
            "fenceSeconds": 10,
            "running": ["a"],
        }
        polls: Any = None
        self.reports = Reports(self, polls, clock=lambda: self.now)  # type: ignore[arg-type]

    def acknowledgements(self, _: Any) -> dict[str, Any]:
        return {"w": ("u", json.dumps(self.report), self.lease)}

    async def end_session(self, _: Any, session: str) -> bool:
        if not self.renews:
            self.ended.append(session)
        return not self.renews

    async def fenced(self, now: float) -> set[str]:
        self.now = now
        return await self.reports.fenced(None, self.spec, self.ledger)  # type: ignore[arg-type]


@pytest.fixture
def scene() -> Scene:
    """First checked at 0 s."""
    return Scene()


async def test_ends_a_session_by_a_write_after_the_fence_time(scene):
    """A renewal in flight conflicts; an old cache does not restore the session."""
    assert await scene.fenced(0) == set()
    assert await scene.fenced(12) == set()
    scene.renews = True
    assert await scene.fenced(13) == set()
    scene.renews = False
    assert await scene.fenced(13) == {"u"}
    assert scene.ended == ["s"]
    assert scene.reports.of(None, scene.spec, scene.ledger, []) == {}


async def test_renewal_restarts_the_fence_time(scene):
    """Whatever the worker's clock shows."""
    await scene.fenced(0)
    scene.lease.resource_version = "2"
    assert await scene.fenced(12) == set()
    assert await scene.fenced(24) == set()
    assert await scene.fenced(25) == {"u"}


@pytest.mark.parametrize(
    "change",
    [{"fenceSeconds": 0}, {"fenceSeconds": 30}, {"session": "another"}],
    ids=["none", "longer", "other"],
)
async def test_silence_counts_only_after_the_worker_knows_the_fence_time(scene, change):
    """A worker that has not read it, or of an earlier version, does not stop in time."""
    scene.report |= change
    await scene.fenced(0)
    assert await scene.fenced(30) == set()
    assert not scene.ended


async def test_session_ended_by_a_killed_controller_is_over(scene):
    """It was killed between the write to the Lease and the write of the record."""
    scene.lease.annotations[ANNOTATION_ENDED] = "s"
    assert await scene.fenced(0) == {"u"}


async def test_ignores_a_pod_without_a_session(scene):
    """It runs no job, so there is nothing to end."""
    scene.ledger.holders["u"].session = ""
    await scene.fenced(0)
    assert await scene.fenced(100) == set()
