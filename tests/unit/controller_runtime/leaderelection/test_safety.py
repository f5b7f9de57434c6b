"""There are never two leaders, on any network."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from controller_runtime.errors import ConnectionFailed
from tests.thorough import seeds
from tests.unit.controller_runtime.leaderelection.election import Client, Store, Work, candidate, now

pytestmark = pytest.mark.looptime


class Chaos:
    """A network with delays, losses before and after the server acted, and late responses."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bad_until = 0.0
        self.on = True
        self._in_flight: set[asyncio.Task[dict[str, Any]]] = set()

    async def __call__(self, request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Deliver a request or not. The server acts even when the client has stopped waiting."""
        if not self.on:
            return request()
        if now() > self.bad_until and self.random.random() < 0.05:
            self.bad_until = now() + self.random.uniform(1, 40)
        bad = now() < self.bad_until
        there = self.random.choice([0.01, 0.2, 3, 12, 30]) if bad else self.random.uniform(0, 0.1)
        back = self.random.choice([0.01, 1, 6]) if bad else self.random.uniform(0, 0.1)
        lost = self.random.random() if bad else 1.0
        if lost < 0.2:
            raise ConnectionFailed("refused")

        async def serve() -> dict[str, Any]:
            await asyncio.sleep(there)
            answer = request()
            await asyncio.sleep(back)
            if lost < 0.4:
                raise ConnectionFailed("reset")
            return answer

        task = asyncio.create_task(serve())
        self._in_flight.add(task)
        task.add_done_callback(self._landed)
        return await asyncio.shield(task)

    def _landed(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()

    async def settle(self) -> None:
        """Wait for delayed requests."""
        await asyncio.gather(*self._in_flight, return_exceptions=True)


class TestSafety:
    """Safety: never two leaders at once."""

    @pytest.mark.parametrize("seed", seeds(4, 12))
    async def test_never_two_leaders_and_always_one_in_the_end(self, seed: int) -> None:
        """Three candidates in ten minutes of failures, killed and restarted."""
        store = Store()
        dice = random.Random(seed)
        works: list[Work] = []
        chaos: list[Chaos] = []
        seen: list[int] = []

        def watched() -> Work:
            work = Work(dice.uniform(0, 4.9), seen)
            works.append(work)
            return work

        async def live(identity: str) -> None:
            """Run a process that is restarted, sometimes without releasing the Lease."""
            client = Client(store)
            client.network = Chaos(dice.randrange(1 << 30))
            chaos.append(client.network)
            generation = 0
            while True:
                generation += 1
                elector = candidate(
                    client, watched(), f"{identity}-{generation}", release_on_cancel=dice.random() < 0.7
                )
                task = asyncio.create_task(elector.run())
                try:
                    await asyncio.sleep(dice.uniform(20, 200))
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        tasks = [asyncio.create_task(live(name)) for name in "abc"]
        await asyncio.sleep(600)
        for network in chaos:
            network.on = False
        for network in chaos:
            await network.settle()
        start = now()
        while not any(work.active for work in works):
            await asyncio.sleep(0.1)
            assert now() < start + 40, "nobody leads although all is well"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert max(itertools.accumulate(seen)) == 1
        assert sum(len(work.started) for work in works) > 3
