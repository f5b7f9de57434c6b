"""Events of the lower cluster, from servers that do not keep their watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from controller_runtime.client import ObjectList
from controller_runtime.errors import Expired, ServerTimeout
from tests.unit.background import working
from virtual_node.controllers import event_mirror as module
from virtual_node.controllers.event_mirror import EventMirror


class _Server:
    """Ends every watch at once, well or with an error."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.asked = 0
        self.lists = 0

    async def list(self, *_what: Any, **_more: Any) -> ObjectList:
        self.asked += 1
        self.lists += 1
        return ObjectList([], "1")

    async def watch(self, *_what: Any, **_more: Any) -> AsyncIterator[Any]:
        self.asked += 1
        await asyncio.sleep(0.001)
        if self._error is not None:
            raise self._error
        nothing: list[Any] = []
        for event in nothing:
            yield event


def _mirroring(server: _Server) -> AbstractAsyncContextManager[asyncio.Task[None]]:
    context: Any = SimpleNamespace(name="a", lower=server, log=structlog.get_logger())
    mirror = EventMirror(context, find_lower=lambda _namespace, _name: None, find_upper=lambda _pod: None)
    return working(mirror.run())


@pytest.mark.looptime
@pytest.mark.parametrize("error", [None, Expired("too old", code=410)])
async def test_a_server_that_ends_watches_at_once_is_not_asked_in_a_loop(error: Exception | None):
    """One that is misled by a proxy, or whose history always expires, has other things to do."""
    server = _Server(error)
    async with _mirroring(server):
        await asyncio.sleep(60)
    assert 2 <= server.asked <= 100


@pytest.mark.looptime(noop_cycles=2)
async def test_a_cluster_that_is_away_for_a_day_ends_nothing(monkeypatch: pytest.MonkeyPatch):
    """The pause is bounded before it is too large for a float."""
    monkeypatch.setattr(module, "_BACKOFF_MAXIMUM", 1.0)
    server = _Server(Expired("too old", code=410))
    with capture_logs():
        async with _mirroring(server) as mirror:
            await asyncio.sleep(2500)
            assert not mirror.done()


@pytest.mark.looptime
async def test_a_server_that_was_restored_from_a_backup_is_listed_again():
    """It has yet to reach our version and refuses it with a time-out: waiting for that may take days."""
    server = _Server(ServerTimeout("Too large resource version", code=504))
    with capture_logs():
        async with _mirroring(server):
            await asyncio.sleep(60)
    assert server.lists >= 2
