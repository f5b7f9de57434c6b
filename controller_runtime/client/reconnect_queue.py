"""A queue for the watches of a client while its API server is unreachable.

Without it, a thousand watches that retry every few seconds would try hundreds of connections per second. The
queue releases one watch after the other, 5 ms apart. After eight attempts without an answer the interval
doubles with each attempt, up to a second. Any answer resets it. This rule has three effects:

- While the server is unreachable, one watch at a time tries it, with back-off, whatever the number of waiting
  watches.
- When the server is back, watches return one by one, slower if it answers slowly, with a fraction of the client's
  rate limit.
- When one of several servers behind a load balancer is down, the delay is short: a watch that reaches another server
  releases the next.

Only watches and the lists before them queue. Requests with a deadline, such as writes and leases, are sent at
any time. They do not release watches: a request on a kept connection proves nothing about new connections.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

from controller_runtime.util import backoff

_PACE = 0.005
"""Seconds between releases while the server answers, up to doubled by jitter. With a list and two watches
per release, that is 400 requests per second, below the 500 of a virtual node's rate limit, in which resources also
take turns."""
_AHEAD = 8
"""Releases at interval ``_PACE`` without an answer, before the interval doubles."""
_SLOWEST = 1.0
"""Longest interval in seconds while the server does not answer, up to doubled by jitter."""


class Outage:
    """Whether one API server is reachable, and the queue of watches that wait for it.

    Attributes:
        error: why the server is unreachable: a watch broke or got no answer, so new watches queue. None while the server
            answers.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._line: deque[asyncio.Future[None]] = deque()
        self._minor: deque[asyncio.Future[None]] = deque()
        self._tries = 0
        """Releases since the last answer."""
        self._timer: asyncio.TimerHandle | None = None
        self._on_return: list[Callable[[], object]] = []

    def on_return(self, call: Callable[[], object]) -> None:
        """Call a function each time that an unreachable server answers again."""
        self._on_return.append(call)

    async def turn(self, *, is_minor: bool) -> None:
        """Wait for the watch's turn; return at once while the server answers and the queue is empty.

        Args:
            is_minor: whether this is one of many small watches, such as of a single object. Released only if
                no others wait.
        """
        if self.error is None and self._timer is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        (self._minor if is_minor else self._line).append(waiter)
        self._arm()
        await waiter

    def answered(self) -> None:
        """Mark the server reachable because a watch or its list got an answer; a refusal counts, too."""
        if self.error is None and not self._tries:
            return
        was_unreachable = self.error is not None
        self.error = None
        self._tries = 0
        if self._timer is not None:
            self._arm()
        if was_unreachable:
            for call in self._on_return:
                call()

    def _arm(self) -> None:
        """Schedule the next release after the current interval, unless an earlier one is scheduled."""
        loop = asyncio.get_running_loop()
        pause = backoff.exponential(max(0, self._tries - _AHEAD), base=_PACE, maximum=_SLOWEST)
        due = loop.time() + pause * (1 + random.random())  # noqa: S311 - jitter
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._start_next)

    def _start_next(self) -> None:
        self._timer = None
        while line := self._line or self._minor:
            waiter = line.popleft()
            if not waiter.done():  # cancelled while it waited
                waiter.set_result(None)
                self._tries += 1
                break
        if self._line or self._minor:
            self._arm()
