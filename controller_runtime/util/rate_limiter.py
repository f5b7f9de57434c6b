"""Limits how often something happens: after failures, requests in turns of their flows, and writes of each of many objects."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from controller_runtime.util.buffers import Recent

_WHOLE = 1 - 1e-9
"""One token minus a tolerance for floating-point errors of refills."""
K = TypeVar("K", bound=Hashable)

BURST, QPS = 20, 0.2
"""Writes of one object at once, and per second in the long run, for objects that change a few times a day."""


def exponential(failures: int, *, base: float, maximum: float) -> float:
    """Return the seconds to wait after failures in a row: ``base * 2**failures``, at most ``maximum``.

    Args:
        failures: number of failures before the last one; may be large, because a loop may fail for days.
        base: seconds after the first failure.
        maximum: longest delay in seconds.
    """
    # The exponent is limited so that the power fits into a float.
    return min(base * 2.0 ** min(failures, 63), maximum)


class ExponentialBackoff:
    """Delays of ``base * 2**failures`` seconds, at most ``maximum``, for each key."""

    def __init__(self, base: float = 0.005, maximum: float = 1000.0) -> None:
        self._base = base
        self._maximum = maximum
        self._failures: dict[Hashable, int] = {}

    def when(self, key: Hashable) -> float:
        """Count a failure and return the seconds until the next attempt."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return exponential(failures, base=self._base, maximum=self._maximum)

    def forget(self, key: Hashable) -> None:
        """Reset the failures of a key that succeeded or was given up."""
        self._failures.pop(key, None)

    def num_requeues(self, key: Hashable) -> int:
        """Return the failures since the last ``forget``."""
        return self._failures.get(key, 0)


class Restarts:
    """Delays before restarts of something that ends although it should not: 1 s, doubled each time, at most 60 s."""

    BASE, MAXIMUM = 1.0, 60.0
    STEADY = 120.0
    """Seconds; after a run that was longer, earlier failures no longer count."""

    def __init__(self) -> None:
        self._failures = 0

    def delay(self, ran: float) -> float:
        """Count an end after ``ran`` seconds; return the seconds until the restart, with up to a quarter of jitter."""
        self._failures = 1 if ran > self.STEADY else self._failures + 1
        delay = exponential(self._failures - 1, base=self.BASE, maximum=self.MAXIMUM)
        return delay * (1 + random.random() / 4)  # noqa: S311 - jitter


class TokenBucket:
    """A token bucket: ``burst`` requests at once, then ``qps`` per second.

    Waiters of one flow are served in order; flows take turns, so a flood in one cannot starve another. A
    cancelled waiter takes no token.
    """

    def __init__(self, qps: float, burst: int) -> None:
        """Create a full bucket.

        Args:
            qps: tokens per second; 0 or less: no limit.
            burst: maximum number of saved tokens, at least 1.
        """
        self._qps = qps
        self._burst = max(1, burst)
        self._tokens = float(self._burst)
        self._updated: float | None = None
        self._flows: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, flow: str = "") -> None:
        """Take one token for a flow, such as a resource; wait if necessary. A cancelled wait takes no token."""
        if self._qps <= 0:
            return
        loop = asyncio.get_running_loop()
        self._refill(loop.time())
        if not self._flows and self._tokens >= _WHOLE:
            self._tokens -= 1
            return
        waiter: asyncio.Future[None] = loop.create_future()
        self._flows.setdefault(flow, deque()).append(waiter)
        self._arm(loop)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # The token was assigned just before the cancellation: give it to the next waiter.
                self._tokens += 1
                self._serve()
            raise

    def _refill(self, now: float) -> None:
        if self._updated is not None:
            self._tokens = min(float(self._burst), self._tokens + (now - self._updated) * self._qps)
        self._updated = now

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(max(0.0, (1 - self._tokens) / self._qps), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._serve()

    def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._refill(loop.time())
        while self._flows and self._tokens >= _WHOLE:
            flow, waiters = self._flows.popitem(last=False)
            while waiters:
                waiter = waiters.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    self._tokens -= 1
                    break
            if waiters:
                self._flows[flow] = waiters
        if self._flows:
            self._arm(loop)


class Pace(Generic[K]):
    """Token buckets by key, in the form of due times (generic cell rate algorithm); of the 4,096 latest keys.

    A write that is not allowed yet is delayed: its key is reconciled again, and then the latest state is written.

    Args:
        burst: writes at once.
        qps: writes per second in the long run.
    """

    def __init__(self, *, burst: int = BURST, qps: float = QPS) -> None:
        self._interval = 1 / qps
        self._ahead = (burst - 1) * self._interval
        self._due: Recent[K, float] = Recent()

    def wait(self, key: K, *, now: float) -> float:
        """Return for how many seconds a write has to wait; 0: not at all, and it counts as written."""
        due = self._due.touch(key) or 0.0
        if (ready := due - self._ahead) > now:
            return ready - now
        self._due[key] = max(due, now) + self._interval
        return 0.0


class Pacer:
    """Assigns times at a steady rate, in the order of the calls (generic cell rate algorithm)."""

    def __init__(self, rate: float, burst: int) -> None:
        """Set the rate.

        Args:
            rate: times per second.
            burst: number of calls that may get the same time.
        """
        self._step = 1 / rate
        self._slack = (burst - 1) * self._step
        self._next = 0.0

    def take(self, now: float, cost: float = 1.0) -> float:
        """Reserve the next free time, which is now or later, and return it; ``cost``: how many times it counts as."""
        due = max(now, self._next - self._slack)
        self._next = max(self._next, now) + cost * self._step
        return due

    def is_idle(self, now: float) -> bool:
        """Report whether the whole burst is available."""
        return self._next <= now
