"""The way of a request there and back: it takes time, it fails, and it may arrive after its sender has gone.

The weather is what the network and a server do to requests at the moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from controller_runtime.errors import (
    ApiError,
    Conflict,
    ConnectionFailed,
    Expired,
    NotConnected,
    ServerTimeout,
    TooManyRequests,
    Unavailable,
)

T = TypeVar("T")
_TIMEOUT = 60.0
"""Seconds after which a client gives up what is not answered."""
_TASKS: set[asyncio.Task[None]] = set()


@dataclass
class Weather:
    """One cluster's. Shares are of 1."""

    down: bool = False
    """Connections are refused."""
    silent: bool = False
    """Nothing answers, no connection breaks."""
    errors: float = 0.0
    """Share of requests that are answered with an error and not carried out."""
    losing: float = 0.0
    """Share of writes that are carried out and whose answer is lost."""
    conflicts: float = 0.0
    """Share of changes that are refused with a conflict, as after a change by another client."""
    slow: float = 0.0
    """Share of requests that take seconds on their way."""
    held: set[str] = field(default_factory=set)
    """Plurals whose watches say nothing for now."""
    lag: float = 0.0
    """Seconds by which watches are late at most."""
    behind: int = 0
    """Last revisions that watches do not report yet."""
    disorder: float = 0.0
    """Share of watch events that come twice; if any do, those of different objects come in any order."""

    def clear(self) -> None:
        vars(self).update(vars(Weather()))


class Road:
    """Between one process and one server."""

    def __init__(self, weather: Weather, *, seed: str) -> None:
        self.weather = weather
        self.dead = False
        """Nobody waits for answers any more."""
        self._seed = seed
        self._sent: Counter[str] = Counter()

    def chance(self, request: str) -> random.Random:
        """Depends on the request alone, so that the order of requests at the same time changes nothing."""
        self._sent[request] += 1
        return random.Random(f"{self._seed} {request} {self._sent[request]}")

    async def ask(self, verb: str, what: str, action: Callable[[], T]) -> T:
        """Have a read carried out."""
        chance = self.chance(f"{verb} {what}")
        await self._travel(chance)
        self._refuse(verb, chance)
        answer = action()
        await self._travel(chance)
        return answer

    async def write(self, verb: str, what: str, action: Callable[[], T]) -> T:
        """Have a write carried out: once, perhaps without an answer, perhaps when nobody waits for it any more."""
        chance = self.chance(f"{verb} {what}")
        outlives = chance.random() < 0.5
        pause = chance.choice([0.001, 0.5, 4.0]) + chance.random() / 1000
        try:
            await self._travel(chance)
        except asyncio.CancelledError:
            if outlives and not self.weather.down:
                later(pause, action)
            raise
        self._refuse(verb, chance)
        if chance.random() < self.weather.conflicts and verb in {"patch", "update"}:
            raise Conflict("Operation cannot be fulfilled", code=409, reason="Conflict")
        answer = action()
        is_lost = chance.random() < self.weather.losing
        await self._travel(chance)
        if is_lost:
            raise chance.choice(
                [
                    ConnectionFailed("reset"),
                    ServerTimeout("etcd", code=504),
                    Unavailable("etcdserver: request timed out", code=500),
                ]
            )
        return answer

    async def end_if_dead(self) -> None:
        """Nothing more happens to a dead process."""
        if self.dead:
            await asyncio.Event().wait()

    async def _travel(self, chance: random.Random) -> None:
        await self.end_if_dead()
        pause, draw = 0.0, chance.random()
        if draw < self.weather.slow:
            pause = chance.choice([0.2, 1.0, 3.0, 8.0])
        elif draw < 0.5:
            pause = chance.choice([0.001, 0.005, 0.02])
        await asyncio.sleep(pause)
        if self.weather.silent:
            await asyncio.sleep(_TIMEOUT)
            raise ConnectionFailed("no answer in time")
        await self.end_if_dead()

    def _refuse(self, verb: str, chance: random.Random) -> None:
        if self.weather.down:
            raise NotConnected("connection refused")
        if chance.random() >= self.weather.errors:
            return
        kinds: list[ApiError] = [
            TooManyRequests("later", code=429, retry_after=1),
            Unavailable("down", code=503),
            Unavailable("internal error", code=500),
            ConnectionFailed("cut"),
        ]
        if verb in {"list", "watch"}:
            kinds.append(Expired("old", code=410))
        raise chance.choice(kinds)


def later(seconds: float, action: Callable[[], object]) -> None:
    """Have a request arrive after some seconds, whatever becomes of its sender."""

    async def arrive() -> None:
        if seconds:
            await asyncio.sleep(seconds)
        with contextlib.suppress(ApiError):
            action()

    in_background(arrive())


def in_background(work: Coroutine[Any, Any, None]) -> None:
    """Start a task that is not awaited; keep a reference, because the loop has only a weak one."""
    task = asyncio.create_task(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
