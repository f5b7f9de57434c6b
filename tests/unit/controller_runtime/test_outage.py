"""Many watches of a server that is away: how little they ask of it, and how soon and in which order they are back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.client import Batch, ObjectList
from controller_runtime.errors import ConnectionFailed, Expired, Forbidden, NotConnected
from controller_runtime.informer import Informer
from controller_runtime.objects import from_dict
from controller_runtime.outage import Outage

pytestmark = pytest.mark.looptime

REFUSED = NotConnected("refused")
RESET = ConnectionFailed("reset")
OLD = Expired("too old resource version", code=410)

Try = Callable[[], Awaitable[bool]]
"""One attempt; tells whether somebody answered."""


class Crowd:
    """Many who find out together that nobody is there, and try one after the other until they get an answer."""

    def __init__(self, attempt: Try, *, size: int, minor: int = 0) -> None:
        self.outage = Outage()
        self.attempt = attempt
        self.tries: list[float] = []
        self.back: list[tuple[float, bool]] = []
        """When somebody got an answer, and whether it was a minor one."""
        self.outage.found_nobody(REFUSED)
        self.tasks = [asyncio.create_task(self._follow(is_minor=index < minor)) for index in range(size)]

    async def _follow(self, *, is_minor: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.outage.turn(is_minor=is_minor)
            self.tries.append(loop.time())
            if await self.attempt():
                break
            self.outage.found_nobody(REFUSED)
        self.outage.answered()
        self.back.append((loop.time(), is_minor))

    async def run(self, seconds: float) -> None:
        """Let them, for a while."""
        await asyncio.wait(self.tasks, timeout=seconds)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def refuse() -> bool:
    """Nobody is there."""
    return False


async def accept() -> bool:
    """Somebody answers within ten milliseconds."""
    await asyncio.sleep(0.01)
    return True


async def test_nobody_waits_while_the_server_answers() -> None:
    """Watches begin at once."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    outage = Outage()
    await outage.turn(is_minor=True)
    outage.found_nobody(REFUSED)
    outage.answered()
    await outage.turn(is_minor=True)
    assert loop.time() == begun


async def test_one_asks_for_all() -> None:
    """A thousand cost a server that is away no more than one would: once in one or two seconds."""
    crowd = Crowd(refuse, size=1000)
    await crowd.run(300)
    assert 300 / 2 <= len(crowd.tries) <= 300 + 20
    pauses = [late - early for early, late in zip(crowd.tries, crowd.tries[1:], strict=False)]
    assert max(pauses) <= 2


async def test_servers_return_is_seen_within_two_seconds() -> None:
    """However long it was away."""
    is_back = False

    async def attempt() -> bool:
        return is_back and await accept()

    crowd = Crowd(attempt, size=20)
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(crowd.run(400))
    await asyncio.sleep(300)
    is_back = True
    since = loop.time()
    await running
    assert min(crowd.back)[0] - since <= 2 + 0.02
    assert max(crowd.back)[0] - since <= 2 + 0.02 + 20 * 0.01


async def test_others_return_one_by_one() -> None:
    """A thousand are back in ten seconds, and never more than two hundred in one."""
    crowd = Crowd(accept, size=1000)
    await crowd.run(60)
    moments = [moment for moment, _ in crowd.back]
    assert len(moments) == 1000
    assert moments[-1] - moments[0] <= 10
    assert max(sum(begin <= moment < begin + 1 for moment in moments) for begin in moments[::50]) <= 200


async def test_what_matters_most_returns_first() -> None:
    """Those who follow a single object each let the others go first, even those who came later."""
    crowd = Crowd(accept, size=220, minor=200)
    await crowd.run(60)
    order = [is_minor for _, is_minor in crowd.back]
    assert order == [False] * 20 + [True] * 200


async def test_slow_server_is_approached_slowly() -> None:
    """One that takes two seconds for an answer has had a dozen or so of our questions by then, not a thousand."""

    async def attempt() -> bool:
        await asyncio.sleep(2)
        return True

    crowd = Crowd(attempt, size=1000)
    await crowd.run(2)
    assert 10 <= len(crowd.tries) <= 18


async def test_server_that_swallows_connections_does_not_stop_the_line() -> None:
    """Who waits ten seconds for a connection in vain is not waited for: the next one asks meanwhile."""

    async def attempt() -> bool:
        if len(crowd.tries) > 50:
            return await accept()
        await asyncio.sleep(10)
        return False

    crowd = Crowd(attempt, size=100)
    await crowd.run(120)
    assert len(crowd.back) == 100


async def test_one_of_three_servers_that_is_down_delays_little() -> None:
    """Behind a load balancer: every third attempt finds nobody, and all are back soon all the same."""

    async def attempt() -> bool:
        return len(crowd.tries) % 3 != 0 and await accept()

    crowd = Crowd(attempt, size=200)
    await crowd.run(60)
    assert len(crowd.back) == 200
    assert max(crowd.back)[0] - crowd.tries[0] <= 10


async def test_who_is_cancelled_in_line_holds_up_nobody() -> None:
    """As when the last pod goes that named a ConfigMap."""
    outage = Outage()
    outage.found_nobody(REFUSED)
    waiting = [asyncio.create_task(outage.turn(is_minor=False)) for _ in range(100)]
    await asyncio.sleep(0)
    for task in waiting[:99]:
        task.cancel()
    async with asyncio.timeout(1):
        await waiting[99]


# --- informers ----------------------------------------------------------------------------------------


class RestartedServer:
    """Refuses connections for a while; then it knows nothing of the versions of before."""

    cluster = "test"

    def __init__(self) -> None:
        self.outage = Outage()
        self.down: Exception | None = None
        self.version = 1
        self.asked = 0
        self.ended = asyncio.Event()

    def stop(self) -> None:
        """End all watches and accept nothing more."""
        self.down = REFUSED
        self.ended.set()
        self.ended = asyncio.Event()

    def start(self) -> None:
        """Serve again, with a newer state."""
        self.down = None
        self.version += 1

    async def list(self, resource: Any, **selection: Any) -> ObjectList:
        """One pod of the current version."""
        await self._accept()
        version = str(self.version)
        metadata = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": version}
        return ObjectList([from_dict({"metadata": metadata})], version)

    async def watch_batches(
        self, resource: Any, *, resource_version: str, **options: Any
    ) -> AsyncGenerator[Batch, None]:
        """Nothing, until the server stops; too old a version is refused."""
        await self._accept()
        if resource_version != str(self.version):
            raise OLD
        yield []
        await self.ended.wait()
        if self.down:
            raise RESET

    async def _accept(self) -> None:
        self.asked += 1
        if self.down:
            raise self.down
        await asyncio.sleep(0.02)


class Followers:
    """Informers of a server, and when they saw the newer state."""

    def __init__(self, server: RestartedServer, *, size: int, is_minor: bool = False) -> None:
        self.moments: list[float] = []
        loop = asyncio.get_running_loop()
        self.informers = [
            Informer(server, resources.PODS, is_minor=is_minor)  # type: ignore[arg-type]
            for _ in range(size)
        ]
        for informer in self.informers:
            informer.add_handler(on_update=lambda _old, _new: self.moments.append(loop.time()))
        self.tasks = [asyncio.create_task(informer.run()) for informer in self.informers]

    async def stop(self) -> None:
        """End them."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.parametrize("outage", [3, 30, 300])
async def test_informers_are_current_soon_after_an_apiserver_restart(outage: int) -> None:
    """Twenty know within three seconds what changed, however long the outage was, and lesser ones after them."""
    server = RestartedServer()
    loop = asyncio.get_running_loop()
    informers = Followers(server, size=20)
    lesser = Followers(server, size=200, is_minor=True)
    await asyncio.sleep(200)
    server.stop()
    server.asked = 0
    await asyncio.sleep(outage)
    assert server.asked <= 20 + outage
    server.start()
    back = loop.time()
    await asyncio.sleep(60)
    await informers.stop()
    await lesser.stop()
    assert (len(informers.moments), len(lesser.moments)) == (20, 200)
    assert max(informers.moments) - back <= 3
    assert max(lesser.moments) - back <= 6


async def test_refusal_is_an_answer() -> None:
    """A server that is back and forbids us something is there: nobody waits for it any more."""
    server = RestartedServer()
    server.outage.found_nobody(REFUSED)
    server.down = Forbidden("no", code=403)
    followers = Followers(server, size=1)
    await asyncio.sleep(0.1)
    await followers.stop()
    assert server.outage.error is None


async def test_informer_that_begins_during_an_outage_knows_why_it_waits() -> None:
    """Before its own first attempt: whoever asks it is told the reason."""
    server = RestartedServer()
    server.stop()
    others = Followers(server, size=50)
    await asyncio.sleep(100)
    late = Followers(server, size=1)
    await asyncio.sleep(0)
    assert late.informers[0].last_error is REFUSED
    await late.stop()
    await others.stop()


async def test_quiet_watch_that_is_accepted_ends_the_trouble() -> None:
    """Nothing may happen for a minute: that the server accepts the watch is enough to be followed again."""
    server = RestartedServer()
    followers = Followers(server, size=1)
    await asyncio.sleep(1)
    server.stop()
    await asyncio.sleep(10)
    before = followers.informers[0].last_error
    server.down = None
    await asyncio.sleep(3)
    assert (before, followers.informers[0].last_error) == (REFUSED, None)
    await followers.stop()
