"""While an API server cannot be reached, the watches of its client stand in line instead of asking each for itself.

A thousand watches that retry every few seconds are hundreds of connections a second that nobody accepts. Here one
after the other is let go to try, 5 ms apart. After eight without an answer the pace doubles with each, up to a second;
any answer that one of them gets brings it back to the beginning. This one rule is

- the single prober with back-off while the server is away, however many wait,
- the staggered return when it is back, and a slow start where it is slow to answer: no herd, and a fraction of the
  client's rate limit,
- and no more than a hiccup where one of several servers behind a load balancer is down: who finds another one lets
  the next go.

Only watches and the lists before them stand in line. Writers, leases and whoever else has a deadline ask when they
like. They do not move the line either: a request by a kept connection says nothing about new ones.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

from controller_runtime.util import backoff

_PACE = 0.005
"""Seconds from one to the next while there are answers. Up to twice that for jitter: of a list and two watches each,
400 requests per second, below the 500 of a virtual node's rate limit, where every resource has its turn besides."""
_AHEAD = 8
"""How many are let go at that pace before the first answer of any is due."""
_SLOWEST = 1.0
"""Seconds from one to the next while there are none, up to twice that for jitter."""


class Outage:
    """Whether one API server can be reached, and the line of those who wait for it.

    Attributes:
        error: why nobody was there when it was tried last; None while the server answers.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._line: deque[asyncio.Future[None]] = deque()
        self._minor: deque[asyncio.Future[None]] = deque()
        self._tries = 0
        """How many were let go since the last answer."""
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, *, is_minor: bool) -> None:
        """Wait until one may ask: not at all while the server answers and nobody waits.

        Args:
            is_minor: one of many, such as a watch of a single object: let go when no other waits.
        """
        if self.error is None and self._timer is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        (self._minor if is_minor else self._line).append(waiter)
        self._arm()
        await waiter

    def found_nobody(self, error: Exception) -> None:
        """A watch broke, or got no answer: all that begin now stand in line."""
        self.error = error

    def answered(self) -> None:
        """A watch or its list got an answer, be it a refusal: the server is there."""
        if self.error is None and not self._tries:
            return
        self.error = None
        self._tries = 0
        if self._timer is not None:
            self._arm()

    def _arm(self) -> None:
        """Let the next one go after the pace's pause, or earlier where that is due already."""
        loop = asyncio.get_running_loop()
        pause = backoff.exponential(max(0, self._tries - _AHEAD), base=_PACE, maximum=_SLOWEST)
        due = loop.time() + pause * (1 + random.random())  # noqa: S311 - jitter
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._let_one_go)

    def _let_one_go(self) -> None:
        self._timer = None
        while line := self._line or self._minor:
            waiter = line.popleft()
            if not waiter.done():  # cancelled while it waited
                waiter.set_result(None)
                self._tries += 1
                break
        if self._line or self._minor:
            self._arm()
