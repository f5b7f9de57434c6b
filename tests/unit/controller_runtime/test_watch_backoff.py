"""How soon informers follow a server again, and how little they ask of one that suffers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.client import Batch, ObjectList
from controller_runtime.errors import ConnectionFailed, Expired, Forbidden, NotConnected, TooManyRequests
from controller_runtime.informer import Informer
from controller_runtime.objects import from_dict
from controller_runtime.watch_backoff import WatchBackoff

REFUSED = NotConnected("refused")
RESET = ConnectionFailed("reset")
OLD = Expired("too old resource version", code=410)


@pytest.fixture
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jitter."""
    monkeypatch.setattr("controller_runtime.watch_backoff.random.random", lambda: 0.0)


def pauses(*errors: Exception, is_watch: bool = False) -> list[float]:
    """The pauses after errors that come a second apart."""
    patience = WatchBackoff()
    return [patience.pause(error, now=now, is_watch=is_watch) for now, error in enumerate(errors)]


@pytest.mark.usefixtures("_steady")
class TestPauses:
    """Each kind of trouble has a ladder of its own."""

    def test_server_that_accepts_no_connection_is_asked_every_few_seconds(self) -> None:
        """It has no work with us, and it may be back at any moment."""
        assert pauses(*[REFUSED] * 8) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3, 3, 3])

    def test_history_that_is_missing_is_read_at_once_and_then_backed_off(self) -> None:
        """The first list mends a restart; a server whose versions always expire is spared."""
        assert pauses(*[OLD] * 9) == pytest.approx([0, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])

    def test_any_other_trouble_waits_as_client_go_does(self) -> None:
        """0.8 s doubled up to 30 s."""
        errors = [Forbidden("no", code=403), *[RESET] * 6]
        assert pauses(*errors) == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30])

    def test_watch_that_broke_is_resumed_at_once_the_first_time(self) -> None:
        """A list that broke is not: its server may have broken of it."""
        assert pauses(RESET, RESET, is_watch=True) == pytest.approx([0.05, 1.6])
        assert pauses(RESET) == pytest.approx([0.8])

    def test_long_outage_does_not_delay_what_comes_after_it(self) -> None:
        """A server that is back says 410, or 403 until it has read its roles: both begin at their own first step."""
        answers = pauses(*[REFUSED] * 50, OLD, Forbidden("no", code=403))
        assert answers[-2:] == pytest.approx([0, 0.8])

    def test_server_that_alternates_is_backed_off_all_the_same(self) -> None:
        """Two kinds of trouble in turn do not reset each other."""
        assert pauses(*[RESET, REFUSED] * 6)[-2] == pytest.approx(25.6)

    def test_retry_after_is_kept(self) -> None:
        """No sooner than the server asks."""
        assert pauses(TooManyRequests("busy", code=429, retry_after=20)) == pytest.approx([20])

    def test_two_quiet_minutes_begin_anew(self) -> None:
        """Trouble of long ago is forgotten."""
        patience = WatchBackoff()
        assert [patience.pause(OLD, now=now, is_watch=False) for now in (0, 10, 131)] == pytest.approx(
            [0, 0.8, 0]
        )
        assert (patience.attempts, patience.since) == (1, 131)


def test_lists_after_a_restart_are_spread() -> None:
    """Those who are told together that history is missing do not list in the same moment, nor late."""
    first = [pauses(OLD)[0] for _ in range(100)]
    assert 0 <= min(first) < 0.1 < max(first) <= 0.2


class RestartedServer:
    """Refuses connections for a while; then it knows nothing of the versions of before."""

    cluster = "test"

    def __init__(self) -> None:
        self.is_down = False
        self.version = 1
        self.asked = 0
        self.ended = asyncio.Event()

    def stop(self) -> None:
        """End all watches and accept nothing more."""
        self.is_down = True
        self.ended.set()
        self.ended = asyncio.Event()

    def start(self) -> None:
        """Serve again, with a newer state."""
        self.is_down = False
        self.version += 1

    async def list(self, resource: Any, **selection: Any) -> ObjectList:
        """One pod of the current version."""
        self._accept()
        version = str(self.version)
        metadata = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": version}
        return ObjectList([from_dict({"metadata": metadata})], version)

    async def watch_batches(
        self, resource: Any, *, resource_version: str, **options: Any
    ) -> AsyncGenerator[Batch, None]:
        """Nothing, until the server stops; too old a version is refused."""
        self._accept()
        if resource_version != str(self.version):
            raise OLD
        await self.ended.wait()
        if self.is_down:
            raise RESET
        yield []

    def _accept(self) -> None:
        self.asked += 1
        if self.is_down:
            raise REFUSED


@pytest.mark.looptime
@pytest.mark.parametrize("outage", [3, 30, 300])
async def test_informers_are_current_soon_after_an_apiserver_restart(outage: int) -> None:
    """Twenty informers know what changed within seven seconds of the restart, however long the outage was."""
    server = RestartedServer()
    loop = asyncio.get_running_loop()
    moments: list[float] = []
    informers = [Informer(server, resources.PODS) for _ in range(20)]  # type: ignore[arg-type]
    for informer in informers:
        informer.add_handler(on_update=lambda _old, _new: moments.append(loop.time()))
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    await asyncio.sleep(200)
    server.stop()
    server.asked = 0
    await asyncio.sleep(outage)
    assert server.asked / len(informers) <= 6 + outage / 3
    server.start()
    back = loop.time()
    await asyncio.sleep(7)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(moments) == len(informers)
    assert max(moments) - back < 7
