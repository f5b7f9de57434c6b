"""The queue of clients that wait for an unreachable server: number of requests, order and time of the reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.client.limits import CacheBudget
from controller_runtime.client.transport import Outage
from controller_runtime.errors import NotConnected
from tests.unit.controller_runtime.loopback import answers, client_of, reply, serve

pytestmark = pytest.mark.looptime(noop_cycles=0)  # without sockets, time need not wait for them

REFUSED = NotConnected("refused")

Try = Callable[[], Awaitable[bool]]
"""One attempt; returns whether the server answered."""


class Crowd:
    """Many clients that lose the server together, and try in turn until they get an answer."""

    def __init__(self, attempt: Try, *, size: int, minor: int = 0) -> None:
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.caches = CacheBudget(0, cluster="test")
        self.attempt = attempt
        self.tries: list[float] = []
        self.back: list[tuple[float, bool]] = []
        """Time of each answer, and whether the client had low priority."""
        self.outage.error = REFUSED
        self.tasks = [asyncio.create_task(self._follow(is_minor=index < minor)) for index in range(size)]

    async def _follow(self, *, is_minor: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.outage.turn(is_minor=is_minor)
            self.tries.append(loop.time())
            if await self.attempt():
                break
            self.outage.error = REFUSED
        self.outage.answered()
        self.back.append((loop.time(), is_minor))

    async def run(self, seconds: float) -> None:
        """Run them for some seconds."""
        await asyncio.wait(self.tasks, timeout=seconds)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def refuse() -> bool:
    """Simulate an unreachable server."""
    return False


async def accept() -> bool:
    """Simulate an answer within ten milliseconds."""
    await asyncio.sleep(0.01)
    return True


async def test_watches_start_at_once_while_the_server_answers() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    outage = Outage()
    await outage.turn(is_minor=True)
    outage.error = REFUSED
    outage.answered()
    await outage.turn(is_minor=True)
    assert loop.time() == begun


async def test_calls_after_each_outage_and_not_otherwise() -> None:
    calls: list[int] = []
    outage = Outage()
    outage.on_return(lambda: calls.append(1))
    outage.answered()
    assert calls == []
    for _ in range(2):
        outage.error = REFUSED
        outage.answered()
        outage.answered()
    assert calls == [1, 1]


async def test_one_client_probes_for_all() -> None:
    """A thousand cost an unreachable server as many requests as one: one in one or two seconds."""
    crowd = Crowd(refuse, size=1000)
    await crowd.run(300)
    assert 300 / 2 <= len(crowd.tries) <= 300 + 20
    pauses = [late - early for early, late in zip(crowd.tries, crowd.tries[1:], strict=False)]
    assert max(pauses) <= 2


async def test_the_servers_return_is_seen_within_two_seconds() -> None:
    """After an outage of any length."""
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


async def test_others_return_gradually() -> None:
    """A thousand are back in ten seconds, and never more than two hundred in one."""
    crowd = Crowd(accept, size=1000)
    await crowd.run(60)
    moments = [moment for moment, _ in crowd.back]
    assert len(moments) == 1000
    assert moments[-1] - moments[0] <= 10
    assert max(sum(begin <= moment < begin + 1 for moment in moments) for begin in moments[::50]) <= 200


async def test_high_priority_returns_first() -> None:
    """Watches of single objects come last, even after clients that queued later."""
    crowd = Crowd(accept, size=220, minor=200)
    await crowd.run(60)
    order = [is_minor for _, is_minor in crowd.back]
    assert order == [False] * 20 + [True] * 200


async def test_slow_server_gets_few_requests() -> None:
    """A server that takes two seconds per response gets about a dozen meanwhile, not a thousand."""

    async def attempt() -> bool:
        await asyncio.sleep(2)
        return True

    crowd = Crowd(attempt, size=1000)
    await crowd.run(2)
    assert 10 <= len(crowd.tries) <= 18


async def test_server_that_drops_packets_does_not_block_the_queue() -> None:
    """The next client tries while one waits ten seconds for its connection."""

    async def attempt() -> bool:
        if len(crowd.tries) > 50:
            return await accept()
        await asyncio.sleep(10)
        return False

    crowd = Crowd(attempt, size=100)
    await crowd.run(120)
    assert len(crowd.back) == 100


async def test_one_broken_server_of_three_delays_little() -> None:
    """Behind a load balancer every third attempt fails, and all are back soon nevertheless."""

    async def attempt() -> bool:
        return len(crowd.tries) % 3 != 0 and await accept()

    crowd = Crowd(attempt, size=200)
    await crowd.run(60)
    assert len(crowd.back) == 200
    assert max(crowd.back)[0] - crowd.tries[0] <= 10


async def test_cancelled_client_in_the_queue_blocks_no_other() -> None:
    """As when the last pod with a reference to a ConfigMap is deleted."""
    outage = Outage()
    outage.error = REFUSED
    waiting = [asyncio.create_task(outage.turn(is_minor=False)) for _ in range(100)]
    await asyncio.sleep(0)
    for task in waiting[:99]:
        task.cancel()
    async with asyncio.timeout(1):
        await waiting[99]


async def test_writers_and_leases_never_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have deadlines, and their callers handle an unreachable server."""

    async def never(*_: Any, **__: Any) -> None:
        raise AssertionError("stood in line")

    monkeypatch.setattr(Outage, "turn", never)
    async with serve(answers(reply(), reply(), reply({"items": []}))) as server, client_of(server) as client:
        client.outage.error = REFUSED
        await client.update(resources.LEASES, {"metadata": {"name": "n", "namespace": "a"}})
        await client.patch(resources.PODS, "p", {}, namespace="n", subresource="status")
        await client.list(resources.PODS)
        assert client.outage.error is REFUSED  # a kept connection does not prove that new ones work
    assert len(server.asked) == 3
