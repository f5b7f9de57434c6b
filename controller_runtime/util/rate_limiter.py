"""Client-side rate limiting that is fair between flows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

_WHOLE = 1 - 1e-9
"""One token minus a tolerance for floating-point errors of refills."""


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
