"""The process while its kubeconfigs change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from multi_scheduler.app import App
from multi_scheduler.config import Config, SchedulerClusterConfig
from tests.unit.background import working
from tests.unit.controller_runtime.auth.kubeconfig.files import write_token


class _App(App):
    """Serves nothing and counts its starts."""

    began = 0

    async def _serve(self) -> None:
        self.began += 1
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[_App]:
    clusters = [SchedulerClusterConfig(name=name, kubeconfig=str(folder / name)) for name in ("a", "b")]
    for name in ("a", "b"):
        write_token((folder / name), "first")
    options: Any = SimpleNamespace(config=Config(clusters=clusters))
    app = _App(options)
    async with working(app.run()) as task:
        await asyncio.sleep(0.1)
        yield app
        assert not task.done()


@pytest.mark.looptime
async def test_restarts_with_a_rotated_kubeconfig(tmp_path: Path):
    """Once."""
    async with _running(tmp_path) as app:
        write_token((tmp_path / "a"), "second-one")
        await asyncio.sleep(10)
        assert app.began == 2


@pytest.mark.looptime
async def test_invalid_kubeconfig_keeps_the_running_clients(tmp_path: Path):
    """The error is logged once, and all changes are applied when the file is valid."""
    async with _running(tmp_path) as app:
        with capture_logs() as logs:
            (tmp_path / "b").write_text("clusters: [", encoding="utf-8")
            await asyncio.sleep(10)
            assert app.began == 1
            assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1
        write_token((tmp_path / "b"), "the-third")
        await asyncio.sleep(10)
        assert app.began == 2
