"""The sidecar with real processes, against a fake API server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hack.sandbox.ports import free_ports
from tests.unit.swarm.worker.fake_api import POD_UID, SWARM, WORKER, FakeApi, until
from tests.waiting import eventually

_PROGRAM = """
import fcntl, os, pathlib, signal, subprocess, sys, time
kind, folder, job = sys.argv[1:]
folder = pathlib.Path(folder)
name = job.encode().hex()

def alone(role):
    # The kernel frees the lock with the process, so a second holder proves that two live.
    file = open(folder / f"{name}.{role}.lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (folder / "two-at-once").write_text(job)
        sys.exit("two at once")
    return file

held = alone(kind)
token = os.environ["SWARM_FENCING_TOKEN"]
if kind == "hanging":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "crashing":
    print("about to crash", flush=True)
    sys.exit(3)
if kind == "family":
    # A grandchild of its own session that ignores SIGTERM and has a parent that is gone.
    middle = subprocess.Popen([sys.executable, "-c", f'''
import subprocess, sys
subprocess.Popen([sys.executable, {str(folder / "program.py")!r}, "hanging", {str(folder)!r}, {job!r}], start_new_session=True)
'''])
    middle.wait()
if kind == "clean":
    def stop(*_):
        (folder / f"{name}.stopped").touch()
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
(folder / f"{name}.{kind}").write_text(f"{os.getpid()} {token}")
print("running", job, flush=True)
print("warning of", job, file=sys.stderr, flush=True)
time.sleep(600)
"""


class Sidecar:
    """One sidecar process, with the files that its jobs write."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        (folder / "program.py").write_text(_PROGRAM)
        self.folder = folder
        (self.port,) = free_ports(1)
        self._flags = {
            "api-server": api.url,
            "swarm": SWARM,
            "namespace": "default",
            "worker": WORKER,
            "pod-uid": POD_UID,
            "http-port": self.port,
            "kill-seconds": 0.5,
        }
        self.process: asyncio.subprocess.Process | None = None
        self.log = folder / "log"

    @contextlib.asynccontextmanager
    async def running(self, kind: str, **flags: Any) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a sidecar; kill it at the end."""
        command = (
            shlex.join([sys.executable, str(self.folder / "program.py"), kind, str(self.folder)]) + " {job}"
        )
        options = {**self._flags, "exec": command, **flags}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "swarm.worker",
                *(f"--{name}={value}" for name, value in options.items()),
                stdout=log,
                stderr=log,
            )
        try:
            yield self.process
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    def pid(self, kind: str, job: str = "a") -> int:
        """Return the process of a job; 0 until it has started."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / f"{job.encode().hex()}.{kind}").read_text().split()[0])
        return 0

    async def metrics(self) -> str:
        """The sidecar's metrics."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/metrics") as answer,
        ):
            return await answer.text()


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest_asyncio.fixture(loop_scope="session")
async def api(_no_forgotten_failures) -> AsyncIterator[FakeApi]:
    """A server with the Lease of the worker."""
    async with FakeApi().serving() as server:
        server.make_lease()
        yield server


@pytest.fixture
def sidecar(api, tmp_path) -> Sidecar:
    """A sidecar that has yet to be started."""
    return Sidecar(api, tmp_path)


async def test_runs_a_process_per_job_and_stops_it(api, sidecar):
    """A job's name is one argument, whatever its characters; output carries the name."""
    odd = "x '; touch $(id) \"{token}"
    async with sidecar.running("clean") as process:
        await until(lambda: bool(api.last))
        api.share(5, {"a": "start", odd: "start"})
        await until(lambda: bool(sidecar.pid("clean") and sidecar.pid("clean", odd)))
        assert (sidecar.folder / f"{odd.encode().hex()}.clean").read_text().split()[1] == "5"
        await until(lambda: f"[{odd}] running {odd}\n" in sidecar.log.read_text())
        await until(lambda: "[a] warning of a\n" in sidecar.log.read_text())
        api.share(6, {"a": "start", odd: "stop"})
        await until(lambda: api.last["stopped"] == [odd])
        assert not _lives(sidecar.pid("clean", odd))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert (sidecar.folder / f"{b'a'.hex()}.stopped").exists()
        assert (api.last["running"], api.last["draining"]) == ([], True)
        assert not _lives(sidecar.pid("clean"))


async def test_kills_a_process_that_ignores_sigterm_and_its_orphans(api, sidecar):
    """The job is acknowledged as stopped only when all its processes have ended, in any session."""
    async with sidecar.running("family"):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"})
        await until(lambda: bool(sidecar.pid("family") and sidecar.pid("hanging")))
        pids = sidecar.pid("family"), sidecar.pid("hanging")
        api.share(2, {})
        await until(lambda: api.last["running"] == [])
        assert not any(map(_lives, pids))
        children = Path(f"/proc/{sidecar.process.pid}/task/{sidecar.process.pid}/children").read_text()
        assert children == "", "zombies are left"


async def test_processes_of_a_killed_sidecar_end(api, sidecar):
    """Direct children end with it; the next sidecar kills orphans before it registers a new session."""
    async with sidecar.running("family") as first:
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"})
        await until(lambda: bool(sidecar.pid("family") and sidecar.pid("hanging")))
        pids = sidecar.pid("family"), sidecar.pid("hanging")
        session, writes = api.last["session"], len(api.acknowledged)
        first.kill()
        await first.wait()
        await until(lambda: not _lives(pids[0]))
        assert _lives(pids[1])
    async with sidecar.running("family"):
        await until(lambda: len(api.acknowledged) > writes)
        assert not _lives(pids[1])
        assert api.last["running"] == []
        assert api.last["session"] != session
        api.share(2, {"a": "start"})
        await until(lambda: sidecar.pid("hanging") not in {0, pids[1]})
    assert not (sidecar.folder / "two-at-once").exists()
    with contextlib.suppress(ProcessLookupError):
        os.kill(sidecar.pid("hanging"), signal.SIGKILL)


async def test_restarts_a_process_that_ends(api, sidecar):
    """Exit codes are in the log, in the acknowledgement and in the metrics."""
    async with sidecar.running("crashing"):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"})
        await until(lambda: sidecar.log.read_text().count("[a] about to crash\n") == 2)
        assert {"a": "exit code 3"} in [one["failing"] for one in api.acknowledged]

        async def counted() -> bool:
            return 'virtual_node_swarm_worker_process_exits_total{code="3"} 2' in await sidecar.metrics()

        await eventually(counted, within=20)
        assert all(one["running"] == ["a"] for one in api.acknowledged if one["version"] == 1)


async def test_kills_its_processes_before_the_fence_time_ends(api, sidecar):
    """Also hanging ones, because the controller then assigns their jobs to others."""
    async with sidecar.running("hanging", **{"kill-seconds": 60}):
        await until(lambda: bool(api.last))
        api.share(1, {"a": "start"}, fenceSeconds=6)
        await until(lambda: bool(sidecar.pid("hanging")))
        session = api.last["session"]
        api.reachable.clear()
        async with asyncio.timeout(6):
            await until(lambda: not _lives(sidecar.pid("hanging")))
        api.reachable.set()
        await until(lambda: api.last["session"] != session)


async def test_reports_wrong_flags(sidecar):
    """A wrong command ends the sidecar before it registers."""
    async with sidecar.running("clean", exec="'unbalanced") as process:
        assert await process.wait() == 1
    assert "--exec: No closing quotation" in sidecar.log.read_text()
    async with sidecar.running("clean", swarm="") as process:
        assert await process.wait() == 1
    assert "SWARM_NAME" in sidecar.log.read_text()
