"""The clients of a process while its kubeconfigs change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime.client.client import Client
from multi_scheduler import connections
from multi_scheduler.config import Config, SchedulerClusterConfig
from tests.unit.background import working
from tests.unit.controller_runtime.auth.kubeconfig.files import write_token


class _Program:
    """Uses no client and counts its starts."""

    began = 0

    async def work(self, upper: Client, lower: Mapping[str, Client]) -> None:
        self.began += 1
        assert [upper.cluster, *lower] == ["upper", "a", "b"]
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[_Program]:
    clusters = [SchedulerClusterConfig(name=name, kubeconfig=str(folder / name)) for name in ("a", "b")]
    for name in ("upper", "a", "b"):
        write_token(folder / name, "first")
    options: Any = SimpleNamespace(
        config=Config(clusters=clusters), kubeconfig=str(folder / "upper"), master=""
    )
    program = _Program()
    async with working(connections.run(options, "program", program.work)) as task:
        await asyncio.sleep(0.1)
        yield program
        assert not task.done()


@pytest.mark.looptime
async def test_restarts_with_a_rotated_kubeconfig(tmp_path: Path):
    """Once."""
    async with _running(tmp_path) as program:
        write_token((tmp_path / "a"), "second-one")
        await asyncio.sleep(10)
        assert program.began == 2


@pytest.mark.looptime
async def test_invalid_kubeconfig_keeps_the_running_clients(tmp_path: Path):
    """The error is logged once, and all changes are applied when the file is valid."""
    async with _running(tmp_path) as program:
        with capture_logs() as logs:
            (tmp_path / "b").write_text("clusters: [", encoding="utf-8")
            await asyncio.sleep(10)
            assert program.began == 1
            assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1
        write_token((tmp_path / "b"), "the-third")
        await asyncio.sleep(10)
        assert program.began == 2
