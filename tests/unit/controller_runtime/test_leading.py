"""The shared process of controllers of which one of several replicas works."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from controller_runtime import leading, resources
from controller_runtime.auth import kubeconfig, weaknesses
from controller_runtime.cache.informer import Informer
from controller_runtime.leaderelection.flags import ControllerOptions
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server


@pytest.mark.parametrize("elects", [True, False])
async def test_work_begins_when_caches_are_read_and_this_replica_leads(monkeypatch, elects):
    server = Server(namespaces=("ns",))
    server.create("pods", {"metadata": {"name": "p"}, "spec": {}}, namespace="ns")

    async def load(*_: Any, **__: Any) -> None:
        """The client is in memory."""

    monkeypatch.setattr(kubeconfig, "load", load)
    monkeypatch.setattr(weaknesses, "warn", lambda *_, **__: None)
    monkeypatch.setattr(leading, "Client", lambda *_, **__: contextlib.nullcontext(MemoryClient(server)))
    began: asyncio.Future[tuple[int, bool]] = asyncio.get_running_loop().create_future()

    def prepare(client: Any) -> leading.Prepared:
        informer = Informer(client, resources.PODS)

        async def work() -> None:
            lease = server.find("leases", "ns/program")
            began.set_result((len(informer.store), lease is not None))
            await asyncio.Event().wait()

        return [informer], work

    options = ControllerOptions(leader_elect=elects)
    task = asyncio.create_task(leading.run("program", options, prepare, namespace="ns"))
    async with asyncio.timeout(10):
        assert await began == (1, elects)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
