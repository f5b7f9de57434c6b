"""The parent of worker processes, with small shell scripts as workers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import ConfigError
from tests.unit.background import working
from virtual_node.config.types import Config
from virtual_node.workers import parent
from virtual_node.workers.parent import Parent


def _parent(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> Parent:
    monkeypatch.setattr(parent, "_RESTART_BASE", 0.01)
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
    """Also with exit code 2, because the configuration may be wrong for a while."""
    starts = tmp_path / "starts"
    script = f"echo start >> {starts}; [ $(wc -l < {starts}) = 2 ] && exit 2; kill -9 $$"
    made = _parent(monkeypatch, script)
    with capture_logs() as logs:
        async with working(made.run()):
            await _until("start\n" * 4, starts)
    reasons = [line["reason"] for line in logs if line["event"] == "worker ended; restarting it"]
    assert reasons[:3] == ["signal SIGKILL", "exit code 2", "signal SIGKILL"]


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
    with capture_logs():
        async with working(_parent(monkeypatch, script).run()):
            await _until("up", steps)
            pid = int(steps.read_text(encoding="utf-8").split()[1])
            assert os.getpgid(pid) == pid
    assert steps.read_text(encoding="utf-8").endswith("stopped\n")
