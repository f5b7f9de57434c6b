"""A worker against a fake API server: which jobs run, and when it acknowledges."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hack.sandbox.ports import free_ports
from swarm.worker import Job, Tasks, Worker, fence
from swarm.worker import client as worker_client
from swarm.worker import jobs as worker_jobs
from tests.unit.swarm.worker.fake_api import NAME, POD_UID, SPACE, FakeApi, config_map, until
from tests.waiting import becomes


class Consumer:
    """Handlers that record the running jobs."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        """Job → its token."""
        self.starts = 0
        self.failures = 0
        self.stuck: set[str] = set()
        """Jobs whose stop does not return."""
        self.broken: set[str] = set()
        """Jobs whose start fails."""
        self.exits: list[int] = []
        """Exit codes with which the process would have ended."""

    async def on_start(self, job: Job) -> None:
        assert job.name not in self.running
        self.starts += 1
        if job.name in self.broken:
            self.failures += 1
            raise RuntimeError("no such stream")
        self.running[job.name] = job.token

    async def on_stop(self, job: Job) -> None:
        await until(lambda: job.name not in self.stuck)
        self.running.pop(job.name, None)

    @contextlib.asynccontextmanager
    async def working(self, api: FakeApi, **settings: Any) -> AsyncIterator[tuple[Worker, asyncio.Task[int]]]:
        """Run a worker within the block."""
        given = api.settings(**{"drain_seconds": 4, **settings})
        worker = Worker(self.on_start, self.on_stop, given, exit_now=self.exits.append)
        task = asyncio.create_task(worker.run())
        try:
            yield worker, task
        finally:
            self.stuck.clear()
            worker.drain()
            await asyncio.wait({task})


@pytest_asyncio.fixture
async def api(_no_forgotten_failures) -> AsyncIterator[FakeApi]:
    """A server with the Lease of the worker."""
    async with FakeApi().serving() as server:
        server.make_lease()
        yield server


@pytest.fixture
def consumer(monkeypatch) -> Consumer:
    """Handlers of a worker with short delays."""
    monkeypatch.setattr(worker_jobs, "_BASE", 0.05)
    monkeypatch.setattr(worker_client, "_POLL", 0.02)
    return Consumer()


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The clock of the fence time; tests advance it."""
    ahead, now = SimpleNamespace(ahead=0.0), fence.now
    monkeypatch.setattr(fence, "now", lambda: now() + ahead.ahead)
    return ahead


async def test_registers_before_it_accepts_a_share(api, consumer):
    """A share for an earlier session of the pod is outdated."""
    api.share(7, {"a": "start"}, session="of-a-killed-process")
    async with consumer.working(api) as (worker, _):
        await until(lambda: "another" not in api.last and bool(api.last))
        assert (api.last["version"], api.last["running"]) == (0, [])
        await until(lambda: "session" in worker._membership.problem)
        assert not consumer.running
        api.share(8, {"a": "start"})
        await until(lambda: consumer.running == {"a": 8})


async def test_waits_for_the_lease_of_its_own_pod(api, consumer):
    """A recreated pod may start before the controller noticed it; it must not write to the old pod's Lease."""
    api.make_lease("the-pod-before")
    async with consumer.working(api):
        await asyncio.sleep(0.05)
        assert not api.acknowledged
        api.make_lease()
        await until(lambda: bool(api.acknowledged))


async def test_acknowledges_a_stop_only_when_the_job_has_stopped(api, consumer):
    """Another worker starts the job as soon as it reads the acknowledgement."""
    async with consumer.working(api):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start", "b": "start", "c": "hold"})
        await until(lambda: api.last["version"] == 1)
        assert api.last["running"] == ["a", "b"]
        consumer.stuck = {"a"}
        api.share(2, {"a": "stop", "b": "start", "c": "start"})
        await until(lambda: api.last["version"] == 2)
        assert api.last["running"] == ["a", "b", "c"]
        assert consumer.running == {"a": 1, "b": 1, "c": 2}
        consumer.stuck = set()
        await until(lambda: api.last["stopped"] == ["a"])
        assert api.last["running"] == ["b", "c"]
    assert (api.last["running"], api.last["draining"]) == ([], True)
    assert all(
        "a" in one["running"] for one in api.acknowledged if one["version"] == 2 and "a" not in one["stopped"]
    )


async def test_keeps_the_last_share_when_a_newer_one_is_damaged_or_deleted(api, consumer):
    """Neither means to stop."""
    async with consumer.working(api) as (worker, _):
        await until(lambda: bool(api.last))
        api.share(3, {"a": "start"})
        await until(lambda: api.last["version"] == 3)
        damaged = config_map({"version": 4})
        damaged["data"]["share.json"] += " "
        api.set("configmaps", NAME, damaged)
        await until(lambda: "checksum" in worker._membership.problem)
        api.delete("configmaps", NAME)
        api.share(2, {}, session=worker._membership.session)
        await until(lambda: not worker._membership.problem)
        assert consumer.running == {"a": 3}
        api.share(5, {})
        await until(lambda: not consumer.running)


async def test_uses_a_split_share_only_when_all_parts_match(api, consumer):
    """The controller writes one part after the other."""

    def part(version: int) -> dict[str, Any]:
        job = {"name": "b", "weight": 1, "state": "start"}
        more = {"podUID": POD_UID, "session": api.last["session"], "part": 1}
        return config_map({**more, "version": version, "jobs": [job]})

    async with consumer.working(api) as (worker, _):
        await until(lambda: bool(api.last))
        api.set("configmaps", f"{NAME}.1", part(1))
        api.share(2, {"a": "start"}, parts=2)
        await until(lambda: "versions 2 and 1" in worker._membership.problem)
        assert not consumer.running
        api.set("configmaps", f"{NAME}.1", part(2))
        await until(lambda: consumer.running == {"a": 2, "b": 2})


async def test_reports_and_retries_a_failing_job(api, consumer):
    """The job stays in `running`, because parts of it may have started."""
    consumer.broken = {"a"}
    async with consumer.working(api):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start", "b": "start"})
        await until(lambda: api.last["failing"] == {"a": "no such stream"})
        assert api.last["running"] == ["a", "b"]
        consumer.broken = set()
        await until(lambda: consumer.running == {"a": 1, "b": 1})
        assert consumer.starts == 2 + consumer.failures


async def test_stops_when_another_process_takes_its_lease(api, consumer):
    """It writes no more, because the other process's acknowledgement counts."""
    async with consumer.working(api) as (_, task):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"})
        await until(lambda: api.last["running"] == ["a"])
        lease = api.server.get("leases", f"{SPACE}/{NAME}")
        api.set("leases", NAME, {**lease, "spec": {"holderIdentity": "another"}})
        assert await task == 1
        assert not consumer.running
        assert api.last["running"] == ["a"]


async def test_fences_itself_when_it_cannot_renew(api, consumer, clock):
    """All jobs stop before the controller may reassign them; later the worker begins a new session."""
    async with consumer.working(api) as (worker, _):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"}, fenceSeconds=30)
        await until(lambda: api.last["running"] == ["a"])
        first, writes = api.last, len(api.acknowledged)
        clock.ahead += 30 / 4
        worker._reporter.changed()
        await until(lambda: len(api.acknowledged) > writes)
        assert api.last == first
        assert consumer.running == {"a": 1}
        api.reachable.clear()
        clock.ahead += 21
        await until(lambda: not consumer.running)
        assert not consumer.exits
        api.reachable.set()
        await until(lambda: api.last["session"] != first["session"])
        assert (api.last["running"], api.last["version"]) == ([], 0)
        assert api.last["life"] > first["life"]
        api.share(2, {"a": "start"}, fenceSeconds=30)
        await until(lambda: consumer.running == {"a": 2})


async def test_exits_if_a_job_does_not_stop_before_the_fence_time(api, consumer, clock):
    """Then the controller reassigns the job."""
    async with consumer.working(api):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"}, fenceSeconds=30)
        await until(lambda: api.last["running"] == ["a"])
        consumer.stuck = {"a"}
        api.reachable.clear()
        clock.ahead += 30
        await until(lambda: consumer.exits == [1])
        api.reachable.set()


async def test_switches_fencing_on_for_running_jobs(api, consumer, clock):
    """Its last write is old then, so it writes again instead of stopping all jobs."""
    async with consumer.working(api):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"})
        await until(lambda: api.last["running"] == ["a"])
        clock.ahead += 1000
        api.share(2, {"a": "start"}, fenceSeconds=30)
        await until(lambda: api.last["version"] == 2)
        assert consumer.starts == 1


async def test_ignores_a_share_that_arrives_after_the_fence_time(api, consumer, clock):
    """The controller may have reassigned its jobs meanwhile."""
    async with consumer.working(api):
        await until(lambda: bool(api.last))
        session = api.last["session"]
        clock.ahead += 25
        api.share(1, {"a": "start"}, fenceSeconds=30)
        await until(lambda: api.last["session"] != session)
        assert consumer.starts == 0


async def test_begins_a_new_session_after_the_controller_ended_its_session(api, consumer):
    """Its jobs may run elsewhere; a recreated Lease looks the same."""
    async with consumer.working(api):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"})
        await until(lambda: api.last["running"] == ["a"])
        first = api.last
        api.make_lease()
        await until(lambda: api.last["session"] != first["session"])
        assert not consumer.running
        assert api.last["running"] == []
        assert api.last["life"] > first["life"]


async def test_exits_if_a_job_does_not_stop_in_the_drain_time(api, consumer):
    """The kubelet would kill it later."""
    async with consumer.working(api, drain_seconds=2.1) as (worker, _):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"})
        await until(lambda: consumer.running == {"a": 1})
        consumer.stuck = {"a"}
        worker.drain()
        await until(lambda: consumer.exits == [1])


async def test_with_refresh_restart_only_released_jobs_are_applied(api, consumer):
    """The first share counts; jobs on hold start when their owner has stopped."""
    async with consumer.working(api):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start", "b": "hold"}, refresh="Restart")
        await until(lambda: consumer.running == {"a": 1})
        api.share(2, {"b": "start", "c": "start"}, refresh="Restart")
        await until(lambda: consumer.running == {"a": 1, "b": 2})
        await until(lambda: api.last["running"] == ["a", "b"])
        assert api.last["version"] == 1


async def test_second_process_of_the_pod_waits(api, consumer):
    """A new session counts as proof that the earlier process has exited."""
    other = Consumer()
    async with consumer.working(api):
        await until(lambda: bool(api.last))
        first = api.last["session"]
        async with other.working(api):
            await asyncio.sleep(0.05)
            assert api.last["session"] == first
    async with other.working(api):
        await until(lambda: api.last["session"] != first and not api.last["draining"])


async def test_tasks_cancels_coroutines_to_stop_and_restarts_ended_ones(api):
    """`Tasks` turns a coroutine into handlers."""
    running: set[str] = set()
    runs = 0

    async def consume(job: Job) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ConnectionError("reset by peer")
        running.add(job.name)
        try:
            await asyncio.Event().wait()
        finally:
            running.discard(job.name)

    worker = Tasks(consume, api.settings()).worker
    task = asyncio.create_task(worker.run())
    await until(lambda: bool(api.last))
    api.share(1, {"a": "start"})
    await until(lambda: api.last["failing"] == {"a": "ConnectionError('reset by peer')"})
    await until(lambda: running == {"a"})
    worker.drain()
    assert await task == 0
    assert not running


async def test_follows_a_file_and_serves_the_endpoints_of_k8s_swarm(tmp_path, consumer):
    """Without the API, the controller reads acknowledgements over HTTP."""
    (port,) = free_ports(1)
    share = {
        "version": 4,
        "session": "",
        "podUID": "",
        "handover": "Overlap",
        "refresh": "Signal",
        "jobs": [],
    }
    file = tmp_path / "worker-0.json"
    base = f"http://127.0.0.1:{port}"

    async def read(path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(base + path) as answer:
            assert (await answer.text()).endswith("\n")
            return await answer.json() if path != "/metrics" else await answer.text()

    async def jobs() -> Any:
        return (await read("/internal/version"))["jobs"]

    async with consumer.working(FakeApi(), file=str(tmp_path), http_port=port) as (worker, _):
        await becomes(jobs, None)
        file.write_text(json.dumps(share | {"jobs": [{"name": "a", "state": "start"}]}))
        await until(lambda: consumer.running == {"a": 4})
        assert await jobs() == ["a"]
        assert set(await read("/internal/health")) == {"date", "version"}
        file.write_text(json.dumps(share | {"version": 5})[:-3])
        await until(lambda: "not JSON" in worker._membership.problem)
        assert "virtual_node_swarm_worker_share_invalid 1" in await read("/metrics")
        assert consumer.running == {"a": 4}
