"""The shared process of controllers of which one of several replicas works."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from controller_runtime import leading, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection import ControllerSettings, Election
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """API server in memory, to which the process connects."""
    server = Server(namespaces=("ns",))
    server.create("pods", {"metadata": {"name": "p"}, "spec": {}}, namespace="ns")

    monkeypatch.setattr(leading, "connected", lambda *_, **__: contextlib.nullcontext(MemoryClient(server)))
    return server


@pytest.mark.parametrize("elects", [True, False])
async def test_work_begins_when_this_replica_leads_and_waits_for_the_caches(server: Server, elects):
    began: asyncio.Future[tuple[int, bool]] = asyncio.get_running_loop().create_future()

    def prepare(client: Any) -> leading.Prepared:
        informer = Informer(client, resources.PODS)

        async def work(synced: leading.Synced) -> None:
            await synced()
            lease = server.find("leases", "ns/program")
            began.set_result((len(informer.store), lease is not None))
            await asyncio.Event().wait()

        return [informer], work

    options = ControllerSettings(election=Election(enabled=elects))
    task = asyncio.create_task(leading.run("program", options, prepare, namespace="ns"))
    async with asyncio.timeout(10):
        assert await began == (1, elects)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_wrong_setting_ends_the_process_although_caches_cannot_be_read(server: Server, monkeypatch):
    async def never(_informer: Informer) -> None:
        await asyncio.Event().wait()

    async def work(_synced: leading.Synced) -> None:
        raise ConfigError("a strategy's parameter is wrong")

    monkeypatch.setattr(Informer, "run", never)
    options = ControllerSettings(election=Election(enabled=False))
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(10):
            await leading.run(
                "program", options, lambda client: ([Informer(client, resources.PODS)], work), namespace="ns"
            )
    assert raised.group_contains(ConfigError, match="parameter is wrong")
