"""The process over changes of its kubeconfigs."""

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
from multi_scheduler.config import ClusterConfig, Config

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:1"}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
"""


class _App(App):
    """Serves nothing, and counts how often it began."""

    began = 0

    async def _serve(self) -> None:
        self.began += 1
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[_App]:
    clusters = [ClusterConfig(name=name, kubeconfig=str(folder / name)) for name in ("a", "b")]
    for name in ("a", "b"):
        (folder / name).write_text(KUBECONFIG.format(token="first"), encoding="utf-8")
    options: Any = SimpleNamespace(config=Config(clusters=clusters))
    app = _App(options)
    task = asyncio.create_task(app.run())
    await asyncio.sleep(0.1)
    try:
        yield app
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_a_rotated_kubeconfig_is_followed(tmp_path: Path):
    """The process begins anew with it, once."""
    async with _running(tmp_path) as app:
        (tmp_path / "a").write_text(KUBECONFIG.format(token="second-one"), encoding="utf-8")
        await asyncio.sleep(10)
        assert app.began == 2


@pytest.mark.looptime
async def test_a_bad_kubeconfig_of_one_cluster_ends_nothing(tmp_path: Path):
    """The extender goes on with what it has, says why once, and takes all changes over when the file is good."""
    async with _running(tmp_path) as app:
        with capture_logs() as logs:
            (tmp_path / "b").write_text("clusters: [", encoding="utf-8")
            await asyncio.sleep(10)
            assert app.began == 1
            assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1
        (tmp_path / "b").write_text(KUBECONFIG.format(token="the-third"), encoding="utf-8")
        await asyncio.sleep(10)
        assert app.began == 2
