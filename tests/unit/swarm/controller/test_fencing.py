"""When the controller ends the session of a silent worker, and gives its jobs to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from controller_runtime.errors import ConnectionFailed
from swarm.controller import reconciler
from swarm.controller.delivery import ANNOTATION_ENDED
from swarm.controller.reports import Reports
from swarm.handover import Holder, Ledger
from tests.background import working
from tests.fakes.apiserver.client import MemoryClient
from tests.thorough import some
from tests.unit.swarm.controller.scene import NAMESPACE, Scene, so
from tests.unit.swarm.controller.workers import Workers

pytestmark = pytest.mark.looptime
_JOBS = [f"job-{number}" for number in range(6)]
_RECREATED = 2.0
"""Seconds until an evicted pod is replaced."""
_STEP = 0.5
"""Seconds for the controller and the workers of a Scene to notice a change."""


class Silence:
    """One worker's cached Lease, and the record."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Time since the Lease was written."""
        self.renews = False
        """Whether the worker renews its Lease before the controller writes."""
        self.ended: list[str] = []
        self.ledger = Ledger(
            holders={"u": Holder(pod="w", uid="u", session="s", life=1, start=["a"], fence=10)}
        )
        self.lease = SimpleNamespace(uid="lease", resource_version="1", annotations={})
        self.report: dict[str, Any] = {"podUID": "u", "session": "s", "life": 1, "running": ["a"]}
        polls: Any = None
        renewals: Any = SimpleNamespace(silence=lambda _: self.seconds)
        self.reports = Reports(self, polls, renewals)  # type: ignore[arg-type]

    def acknowledgements(self, _: Any) -> dict[str, Any]:
        return {"w": ("u", json.dumps(self.report) if self.report else "", self.lease)}

    async def end_session(self, _: Any, session: str) -> bool:
        if not self.renews:
            self.ended.append(session)
        return not self.renews

    async def after(self, seconds: float) -> tuple[set[str], float | None]:
        """Return the UIDs of the pods with an ended session, and when to look again."""
        self.seconds = seconds
        fenced = await self.reports.fenced(None, self.ledger)  # type: ignore[arg-type]
        return set(fenced.uids), fenced.next_in


@pytest.fixture
def silence() -> Silence:
    """A worker with a fence time of 10 s."""
    return Silence()


async def test_ends_a_session_by_a_write_after_the_fence_time(silence):
    """A renewal in flight conflicts with the write."""
    assert await silence.after(0) == (set(), 12.5)
    assert await silence.after(12) == (set(), 0.5)
    silence.renews = True
    assert await silence.after(13) == (set(), 1.0)
    silence.renews = False
    assert await silence.after(13) == ({"u"}, None)
    assert silence.ended == ["s"]


async def test_ends_no_session_without_a_known_fence_time(silence):
    """The worker does not stop by itself."""
    silence.ledger.holders["u"].fence = 0
    assert await silence.after(100) == (set(), None)


async def test_does_not_end_a_later_session_than_the_recorded_one(silence):
    """The record follows with the next reconcile."""
    silence.report["session"] = "later"
    assert await silence.after(100) == (set(), 1.0)


@pytest.mark.parametrize("report", [{}, {"podUID": 7}], ids=["none", "invalid"])
async def test_ends_a_session_without_a_report(silence, report):
    """The Lease was created again while the worker was cut off."""
    silence.report = report
    assert await silence.after(13) == ({"u"}, None)


async def test_session_ended_by_a_killed_controller_is_over(silence):
    """It was killed between the write to the Lease and the write of the record."""
    silence.lease.annotations[ANNOTATION_ENDED] = "s"
    assert await silence.after(0) == ({"u"}, None)


async def test_ignores_a_pod_without_a_session(silence):
    """It runs no job, so there is nothing to end."""
    silence.ledger.holders["u"].session = ""
    assert await silence.after(100) == (set(), None)


# --- the whole controller, with workers ---------------------------------------------------------------


class Client(MemoryClient):
    """A client of an API server that can be unreachable."""

    is_refused = False

    async def send(self, *request: Any, **options: Any) -> Any:
        if self.is_refused:
            raise ConnectionFailed("refused")
        return await super().send(*request, **options)

    async def watch_batches(self, *collection: Any, **options: Any) -> AsyncIterator[Any]:
        async for batch in super().watch_batches(*collection, **options):
            if self.is_refused:
                raise ConnectionFailed("refused")
            yield batch


class Fenced(Scene):
    """A Swarm with three workers, which run all jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client(self.server)
        self.client.bookmark_seconds = 1.0
        self.workers = Workers(self, _JOBS)

    def ready(self, name: str, *, is_ready: bool = True) -> None:
        """Create a pod, or change its readiness."""
        status = "True" if is_ready else "False"
        if self.find("pods", name) is None:
            self.pod(name)
        conditions = [{"type": "Ready", "status": status}]
        self.server.change("pods", f"{NAMESPACE}/{name}", status={"conditions": conditions})

    def change(self, **spec: Any) -> None:
        """Change the Swarm's specification."""
        self.server.change("swarms", f"{NAMESPACE}/s", spec=spec)

    async def settled(self, within: float = 30.0) -> None:
        """Wait until each job runs once."""
        await so(self.workers.all_run, True, within=within)

    async def begin(self, **spec: Any) -> None:
        """Create the Swarm and three pods with workers; wait until they run all jobs."""
        for name in ("w-0", "w-1", "w-2"):
            self.ready(name)
        self.workers.start("w-0", "w-1", "w-2")
        self.swarm(jobs=[{"name": job} for job in _JOBS], **{"fenceSeconds": 8, **spec})
        await self.settled()
        await self.until(lambda: [worker["runningCount"] for worker in self.status()["workers"]] == [2, 2, 2])
        self.workers.measure()

    @contextlib.asynccontextmanager
    async def recreating(self) -> AsyncIterator[None]:
        """Replace evicted pods and their workers, as a kubelet and a StatefulSet do."""

        async def recreate() -> None:
            while True:
                await asyncio.sleep(_RECREATED)
                for pod in self.server.all("pods"):
                    name = pod["metadata"]["name"]
                    if "deletionTimestamp" in pod["metadata"]:
                        del self.workers.by_name[name]
                        self.server.change("pods", f"{NAMESPACE}/{name}", status={"phase": "Succeeded"})
                        self.server.remove("pods", f"{NAMESPACE}/{name}")
                        self.ready(name)
                        self.workers.start(name)

        async with working(recreate()):
            yield

    async def until(self, check: Any) -> None:
        """Wait until a condition holds."""
        await so(check, True)

    def cut(self, name: str = "w-1") -> None:
        """Cut the connection of a worker; its pod stays ready."""
        self.workers.by_name[name].connected = False

    def check(self, within: float) -> None:
        """Check that no job ran twice, and each had an owner again within some seconds."""
        assert not self.workers.doubled
        assert self.workers.all_run()
        longest = max(self.workers.gaps.values(), default=0.0)
        assert longest <= within, self.workers.gaps


@pytest_asyncio.fixture
async def scene(monkeypatch) -> AsyncIterator[Fenced]:
    """A Scene without workers; its wall clock is the virtual one, and nothing runs in threads."""
    loop = asyncio.get_running_loop()
    clock = SimpleNamespace(time=lambda: 1e9 + loop.time(), monotonic=loop.time)

    async def inline(function: Any, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    monkeypatch.setattr(reconciler, "time", clock)
    monkeypatch.setattr(asyncio, "to_thread", inline)
    scene = Fenced()
    yield scene
    await scene.workers.close()


def _limit(fence: float) -> float:
    """Return the longest time without an owner: the worker stops after two thirds of the time."""
    return fence * (1.25 - 2 / 3) + _STEP


@pytest.mark.parametrize("fence", some([5, 8, 30], 2))
@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "unready"])
async def test_jobs_of_a_silent_worker_move_after_the_fence_time(scene, fence, is_ready):
    """Also while its pod is ready, and before the end of the grace period of a pod that is not."""
    async with scene.running():
        await scene.begin(fenceSeconds=fence, unreadyGraceSeconds=600)
        cut = asyncio.get_running_loop().time()
        scene.cut()
        scene.ready("w-1", is_ready=is_ready)
        await asyncio.sleep(fence)
        await scene.settled()
        assert asyncio.get_running_loop().time() - cut <= fence * 1.25 + _STEP
        scene.check(_limit(fence))
        assert scene.condition()[0] == "WorkersSilent"
        await asyncio.sleep(60)
        scene.check(_limit(fence))
        assert scene.status()["workerCount"] == 2


@pytest.mark.parametrize("handover", ["Exclusive", "Overlap"])
@pytest.mark.parametrize("workers", ["statefulSet", "deployment"])
async def test_silent_worker_of_a_workload_loses_its_slot(scene, workers, handover):
    """Under Overlap, workers apply no fence and continue to run their jobs."""
    kind = "statefulsets" if workers == "statefulSet" else "deployments"
    labels = {"matchLabels": {"app": "w"}}
    body = {"metadata": {"name": "w"}, "spec": {"replicas": 3, "selector": labels}}
    owner = scene.server.create(kind, body, namespace=NAMESPACE)
    reference = {"kind": "ReplicaSet", "name": "w", "uid": owner["metadata"]["uid"], "controller": True}
    for name in ("w-0", "w-1", "w-2"):
        scene.ready(name)
        metadata = {"ownerReferences": [reference], "labels": {"app": "w"}}
        scene.server.change("pods", f"{NAMESPACE}/{name}", metadata=metadata)
    async with scene.running():
        await scene.begin(workers={workers: "w"}, handover=handover)
        scene.cut()
        await asyncio.sleep(60)
        scene.check(_limit(8) if handover == "Exclusive" else 0)
        assert scene.status()["workerCount"] == (2 if handover == "Exclusive" else 3)


async def test_other_workers_restart_to_read_the_jobs_of_a_silent_one(scene):
    """With ``refresh: Restart``, one after the other; the silent worker does not count as restarting."""
    async with scene.running(), scene.recreating():
        await scene.begin(refresh="Restart", unreadyGraceSeconds=600)
        scene.cut()
        await asyncio.sleep(60)
        scene.check(_limit(8) + 2 * (_RECREATED + _STEP))
        assert scene.status()["workerCount"] == 2


@pytest.mark.parametrize("late", some([3.0, 6.0, 9.9, 10.1, 12.0, 60.0], 3))
async def test_worker_that_reports_late_gets_jobs_again(scene, late):
    """Before or after its session was ended, as the worker that it was."""
    async with scene.running():
        await scene.begin()
        scene.cut()
        await asyncio.sleep(late)
        scene.workers.by_name["w-1"].connected = True
        await scene.until(lambda: scene.status()["workerCount"] == 3 and scene.condition()[0] == "Healthy")
        await scene.until(
            lambda: [len(worker.running) for worker in scene.workers.by_name.values()] == [2, 2, 2]
        )
        scene.check(_limit(8))


async def test_worker_cut_off_before_its_first_share_was_acknowledged(scene):
    """It may run the jobs of this share, and its fence time is known all the same."""
    async with scene.running():
        await scene.begin()
        scene.ready("w-3")
        scene.workers.start("w-3")
        late = scene.workers.by_name["w-3"]
        late.reads = False
        await scene.until(lambda: sum(scene.workers.owners().values()) < len(_JOBS))
        late.reads, late.connected = True, False
        await asyncio.sleep(20)
        await scene.settled()
        scene.check(10 + _STEP)


async def test_pod_that_is_ready_and_never_registers_gets_no_jobs(scene):
    """The other workers continue to run them."""
    async with scene.running():
        await scene.begin()
        scene.ready("w-3")
        await asyncio.sleep(100)
        scene.check(0)
        assert scene.status()["workerCount"] == 3


@pytest.mark.parametrize("fence", [0, 8])
async def test_pod_that_does_not_register_in_time_loses_its_first_jobs(scene, fence):
    """At the start of a Swarm, all ready pods get jobs, so that the first registered worker does not get all."""
    for name in ("w-0", "w-1", "w-2"):
        scene.ready(name)
    scene.workers.start("w-0", "w-2")
    scene.swarm(jobs=[{"name": job} for job in _JOBS], fenceSeconds=fence, unreadyGraceSeconds=10)
    async with scene.running():
        await asyncio.sleep(9)
        assert sum(scene.workers.owners().values()) == 4
        await asyncio.sleep(1 + _STEP)
        assert scene.workers.all_run()
        assert scene.condition()[0] == "WorkersSilent"
        await asyncio.sleep(60)
        scene.check(10 + _STEP)
        scene.workers.start("w-1")
        await scene.until(lambda: scene.condition()[0] == "Healthy" and scene.status()["workerCount"] == 3)
        await scene.settled()


async def test_only_worker_keeps_its_slot(scene):
    """There is no worker to move its jobs to; it starts them again when it is back."""
    scene.ready("w-0")
    scene.workers.start("w-0")
    scene.swarm(jobs=[{"name": job} for job in _JOBS], fenceSeconds=8)
    async with scene.running():
        await scene.settled()
        scene.cut("w-0")
        await asyncio.sleep(100)
        assert not scene.workers.owners()
        assert scene.status()["assignedCount"] == len(_JOBS)
        scene.workers.by_name["w-0"].connected = True
        await scene.settled(within=_STEP)


@pytest.mark.parametrize("is_standby", [True, False], ids=["standby", "restarted"])
@pytest.mark.parametrize("after", some([5.0, 9.8, 10.3], 2))
async def test_next_controller_gives_the_jobs_of_a_silent_worker_to_others(scene, after, is_standby):
    """A standby replica knows since when the worker is silent. A restarted one counts again."""
    loop = asyncio.get_running_loop()
    async with scene.following() as standby:
        async with scene.running():
            await scene.begin()
            cut = loop.time()
            scene.cut()
            await asyncio.sleep(after)
        await asyncio.sleep(3)
        async with scene.running(standby if is_standby else None):
            started = loop.time()
            await asyncio.sleep(0.1)
            await scene.settled()
            limit = max(cut + 10, started) if is_standby or after > 10 else started + 10
            assert loop.time() <= limit + _STEP
            await asyncio.sleep(60)
            assert not scene.workers.doubled
            assert scene.workers.all_run()


@pytest.mark.parametrize(
    "changes", [[0, 8], [60, 8], [60], [5]], ids=["off and on", "longer and back", "longer", "shorter"]
)
async def test_fence_time_changed_while_a_worker_is_cut_off(scene, changes):
    """The worker may have read each of the times, and acknowledged none."""
    async with scene.running():
        await scene.begin()
        worker = scene.workers.by_name["w-1"]
        for fence in changes[:-1]:
            scene.change(fenceSeconds=fence)
            await asyncio.sleep(0.09)
            worker.act(asyncio.get_running_loop().time())
            worker.connected = False
        scene.cut()
        scene.change(fenceSeconds=changes[-1])
        await asyncio.sleep(100)
        assert not scene.workers.doubled
        if 0 not in changes:
            scene.check(max(8, *changes) * 1.25 + _STEP)


async def test_workers_have_time_to_renew_after_an_outage_of_the_api_server(scene):
    """Otherwise the first worker that is back would get all jobs, and then return most of them."""
    async with scene.running():
        await scene.begin()
        table = scene.status()["tableVersion"]
        for name in scene.workers.by_name:
            scene.cut(name)
        scene.client.is_refused = True
        await asyncio.sleep(20)
        scene.client.is_refused = False
        await asyncio.sleep(3)
        for worker in scene.workers.by_name.values():
            worker.connected = True
            await asyncio.sleep(1)
        await scene.settled()
        await asyncio.sleep(60)
        scene.check(60)
        assert scene.status()["tableVersion"] == table
