"""Pods of a lower cluster that cannot be read are reported not ready, and as before when it can be read again."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterset.config import Unreachable
from clusterset.model.pod.conditions import condition
from controller_runtime.errors import Forbidden
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, Scene, clusters, mirroring
from virtual_node.controllers.pods.status_writer import OutageController

pytestmark = pytest.mark.looptime

_SINCE = "2026-01-01T00:00:00Z"
_READY = {
    "phase": "Running",
    "startTime": _SINCE,
    "conditions": [
        {"type": kind, "status": "True", "lastTransitionTime": _SINCE}
        for kind in ("ContainersReady", "Ready")
    ],
}


class _Outage:
    """A scene with a Ready pod, and a lower cluster that can be lost."""

    def __init__(self, **unreachable: Any) -> None:
        self.scene = Scene(*clusters())
        self.scene.context.config.unreachable = Unreachable(**unreachable)
        self.health: Any = SimpleNamespace(reachable=True, error="", answered_at=0.0)
        pods = self.scene.pods
        self.controller = OutageController(
            self.scene.context, cast("Any", self.health), self.scene.caches, pods.status, pods.queue
        )

    @contextlib.asynccontextmanager
    async def running(self):
        """Mirror, with one pod that is Ready."""
        async with mirroring(self.scene):
            self.scene.bind()
            await asyncio.sleep(5)
            self.scene.lower.change("pods", KEY, status=_READY)
            await asyncio.sleep(5)
            assert self.ready()["status"] == "True"
            task = asyncio.create_task(self.controller.run())
            try:
                yield self
            finally:
                task.cancel()

    def lose(self):
        """Let the lower cluster stop to answer now."""
        self.health.answered_at = asyncio.get_running_loop().time()
        self.health.reachable, self.health.error = False, "no answer within 5 s"

    def ready(self):
        """Return the Ready condition of the upper pod."""
        return condition(self.scene.above()["status"], "Ready")


async def test_pods_are_not_ready_after_the_time_and_restored_at_return():
    """Only the condition Ready changes, as in kube-controller-manager."""
    outage = _Outage(after_seconds=60)
    async with outage.running():
        outage.lose()
        await asyncio.sleep(55)
        assert outage.ready()["status"] == "True"
        await asyncio.sleep(10)
        found = outage.ready()
        assert (found["status"], found["reason"]) == ("False", "LowerClusterUnreachable")
        assert found["message"] == "Lower cluster lower1 does not answer: no answer within 5 s"
        assert condition(outage.scene.above()["status"], "ContainersReady")["status"] == "True"
        outage.health.reachable = True
        await asyncio.sleep(5)
        assert outage.ready() == {"type": "Ready", "status": "True", "lastTransitionTime": _SINCE}


async def test_short_outage_changes_nothing():
    """The time counts from the last answer, and begins again with each."""
    outage = _Outage(after_seconds=60)
    async with outage.running():
        for _ in range(5):
            outage.lose()
            await asyncio.sleep(50)
            outage.health.reachable = True
            await asyncio.sleep(5)
        assert outage.ready()["status"] == "True"
        cached = outage.scene.caches.upper["vn"].store.get(KEY)
        assert cached is not None
        assert outage.scene.above()["metadata"]["resourceVersion"] == cached.resource_version


async def test_changes_of_the_upper_pod_do_not_restore_it():
    """The cached lower pod still is Ready, and the pod is mirrored after each change. No write is repeated."""
    outage = _Outage(after_seconds=10)
    async with outage.running():
        outage.lose()
        await asyncio.sleep(20)
        outage.scene.upper.change("pods", KEY, metadata={"labels": {"a": "b"}})
        await asyncio.sleep(20)
        assert outage.ready()["status"] == "False"
        outage.scene.upper.calls.clear()
        await asyncio.sleep(60)
        assert not [call for call in outage.scene.upper.calls if call[0] == "patch"]


async def test_keep_ready_leaves_the_pods():
    outage = _Outage(pods="KeepReady", after_seconds=0)
    async with outage.running():
        outage.lose()
        await asyncio.sleep(600)
        assert outage.ready()["status"] == "True"


async def test_pods_that_may_not_be_read_are_not_ready_although_the_cluster_answers(monkeypatch):
    """Their statuses are as unknown as those of a cluster that is down."""
    outage = _Outage(after_seconds=10)
    async with outage.running():
        refusal = Forbidden("pods is forbidden", code=403)
        monkeypatch.setattr(type(outage.scene.caches.lower), "last_error", refusal)
        await asyncio.sleep(20)
        assert outage.ready()["status"] == "False"
        assert "forbidden" in outage.ready()["message"]


async def test_process_that_starts_during_an_outage_reports_the_pods_too():
    """The controllers of pods do not run yet, because the lower cluster has never been listed."""
    outage = _Outage(after_seconds=30)
    async with mirroring(outage.scene):
        outage.scene.bind()
        await asyncio.sleep(5)
        outage.scene.lower.change("pods", KEY, status=_READY)
        await asyncio.sleep(5)
    second = _Outage(after_seconds=30)
    second.scene = Scene(outage.scene.upper, outage.scene.lower)
    second.health = SimpleNamespace(reachable=None, error="", answered_at=None)
    asyncio.get_running_loop().call_later(5, setattr, second.health, "reachable", False)
    second.scene.context.config.unreachable = Unreachable(after_seconds=30)
    scene = second.scene
    outage.scene.upper.feed(scene.caches.upper["vn"])
    controller = OutageController(
        scene.context, second.health, scene.caches, scene.pods.status, scene.pods.queue
    )
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(25)
    assert second.ready()["status"] == "True"
    await asyncio.sleep(20)
    task.cancel()
    assert second.ready()["status"] == "False"


async def test_process_that_starts_does_not_report_pods_before_the_cluster_was_asked():
    """With ``afterSeconds: 0``, each start would take all pods out of their Services."""
    outage = _Outage(after_seconds=0)
    async with outage.running():
        outage.health.reachable = None
        await asyncio.sleep(10)
        assert outage.ready()["status"] == "True"
        outage.lose()
        await asyncio.sleep(5)
        assert outage.ready()["status"] == "False"


@pytest.mark.parametrize(
    ("after", "since", "status", "seconds"),
    [
        (60, 0, "False", 60),
        (0, 0, "False", 2),
        (300, 0, "False", 300),
        (3600, 0, "True", 0),  # the cluster is read again first
        (3600, 3500, "False", 100),
        (3600, 9000, "False", 2),
        (float("inf"), 9000, "True", 0),
    ],
)
async def test_pods_of_a_cluster_that_is_too_large_are_reported_when_their_time_has_come(
    after: float, since: float, status: str, seconds: float
):
    """No wait is longer than the pause until the cluster is read again, whatever the setting."""
    outage = _Outage(after_seconds=after)
    async with outage.running():
        pass
    loop = asyncio.get_running_loop()
    began = loop.time()
    await outage.controller.stopped("LowerClusterTooLarge", "too large", since=began - since, longest=300)
    assert loop.time() - began == pytest.approx(seconds, abs=1)
    assert outage.ready()["status"] == status
    if status == "False":
        assert outage.ready()["reason"] == "LowerClusterTooLarge"


async def test_pods_that_change_after_the_cluster_was_stopped_are_reported_too():
    """The controllers that follow the upper cluster have ended with the lower one."""
    outage = _Outage(after_seconds=60)
    scene = outage.scene
    async with outage.running():
        pass
    scene.upper.change("pods", KEY, metadata={"labels": {"a": "b"}})
    now = asyncio.get_running_loop().time()
    await outage.controller.stopped("LowerClusterTooLarge", "too large", since=now, longest=300)
    assert outage.ready()["status"] == "False"


async def test_pods_are_rarely_searched_again_once_all_are_reported(monkeypatch: pytest.MonkeyPatch):
    """An outage may last for days, and each search decodes the statuses of thousands of pods."""
    outage = _Outage(after_seconds=10)
    async with outage.running():
        searches = 0
        store = outage.scene.caches.upper["vn"].store
        listed = store.list

        def counted() -> Any:
            nonlocal searches
            searches += 1
            return listed()

        monkeypatch.setattr(store, "list", counted)
        outage.lose()
        await asyncio.sleep(600)
        assert outage.ready()["status"] == "False"
        assert searches < 30
        outage.health.reachable = True
        await asyncio.sleep(5)
        assert outage.ready()["status"] == "True"
        outage.lose()
        await asyncio.sleep(15)
        assert outage.ready()["status"] == "False"
