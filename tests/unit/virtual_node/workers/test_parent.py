"""The parent of worker processes, with small shell scripts as workers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import ConfigError
from controller_runtime.util import rate_limiter
from tests.background import working
from virtual_node import workers
from virtual_node.config.types import Config
from virtual_node.workers import Parent


def _parent(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> Parent:
    monkeypatch.setattr(rate_limiter.Restarts, "BASE", 0.01)
    made = Parent(Config(workers=len(scripts)), [])
    for worker, script in zip(made._workers, scripts, strict=True):
        worker._command = ["/bin/sh", "-c", script]
    return made


async def _until(condition: str, file: Path) -> None:
    async with asyncio.timeout(30):
        # Another process writes the file.
        while not file.exists() or condition not in file.read_text(encoding="utf-8"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_worker_that_ends_is_restarted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Also with exit code 2, because a wrong configuration may be corrected."""
    starts = tmp_path / "starts"
    script = f"echo start >> {starts}; [ $(wc -l < {starts}) = 2 ] && exit 2; kill -9 $$"
    made = _parent(monkeypatch, script)
    with capture_logs() as logs:
        async with working(made.run()):
            await _until("start\n" * 4, starts)
    reasons = [line["reason"] for line in logs if line["event"] == "worker ended; restarting it"]
    assert reasons[:3] == ["signal SIGKILL", "exit code 2", "signal SIGKILL"]


async def test_a_worker_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The other workers continue."""
    steps, command = tmp_path / "steps", tmp_path / "command"
    made = _parent(monkeypatch, "", f"echo other >> {steps}; read _")
    made._workers[0]._command = [str(command)]
    with capture_logs() as logs:
        async with working(made.run()):
            await _until("other", steps)
            (tmp_path / "new").write_text(f"#!/bin/sh\necho started >> {steps}; read _\n", encoding="utf-8")
            (tmp_path / "new").chmod(0o700)
            (tmp_path / "new").rename(command)
            await _until("started", steps)
    assert steps.read_text(encoding="utf-8") == "other\nstarted\n"
    assert any("cannot be started" in line.get("reason", "") for line in logs)


async def test_only_a_worker_that_fails_for_long_fails_the_liveness_check(monkeypatch: pytest.MonkeyPatch):
    """A worker that starts or stalls does not. After a success or a restart the time begins again."""
    made = _parent(monkeypatch, "exec sleep 60", "exec sleep 60")
    statuses, now = {1: 200, 2: 0}, 0.0

    async def ask(worker: Any, _: str) -> tuple[int, bytes]:
        return statuses[worker.number], b""

    monkeypatch.setattr(made, "_ask", ask)
    monkeypatch.setattr(workers, "monotonic", lambda: now)
    with capture_logs():
        async with working(made.run()):
            while not all(worker.is_running for worker in made._workers):  # noqa: ASYNC110 - real processes
                await asyncio.sleep(0.01)
            assert await made._trouble("readyz") == "worker 2 does not answer"
            seen = []
            for now, statuses[2] in (  # noqa: B007 - read by the clock
                (0.0, 0), (29.0, 0), (29.5, 200), (60.0, 0), (89.0, 0), (91.0, 0), (92.0, 503), (93.0, 200)
            ):  # fmt: skip
                seen.append(await made._trouble("livez"))
    assert seen == ["", "", "", "", "", "worker 2 does not answer", "worker 2 is not alive", ""]


async def test_a_wrong_configuration_at_the_first_start_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The other workers are stopped gracefully."""
    steps = tmp_path / "steps"
    patient = f"trap 'echo stopped >> {steps}; exit 0' TERM; echo up >> {steps}; while :; do sleep 0.01; done"
    wrong = f"while ! [ -e {steps} ]; do sleep 0.01; done; exit 2"
    with capture_logs(), pytest.raises(ExceptionGroup) as raised:
        await _parent(monkeypatch, patient, wrong).run()
    assert raised.value.subgroup(ConfigError) is not None
    assert steps.read_text(encoding="utf-8") == "up\nstopped\n"


async def test_a_stopped_parent_waits_for_its_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """They get SIGTERM, not the signals of the parent's terminal."""
    steps = tmp_path / "steps"
    script = f"trap 'sleep 0.2; echo stopped >> {steps}; exit 0' TERM; echo up $$ >> {steps}; while :; do sleep 0.01; done"
    made = _parent(monkeypatch, script)
    with capture_logs():
        async with working(made.run()):
            await _until("up", steps)
            while not made._workers[0].is_running:  # noqa: ASYNC110 - asyncio kills a process whose start is cancelled
                await asyncio.sleep(0.01)
            pid = int(steps.read_text(encoding="utf-8").split()[1])
            assert os.getpgid(pid) == pid
    assert steps.read_text(encoding="utf-8").endswith("stopped\n")
