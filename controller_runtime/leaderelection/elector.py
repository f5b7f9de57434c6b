"""Leader election on a Lease: at most one of several candidates works at a time.

A ``candidate.Candidate`` acquires and renews the Lease. The leader cancels its work when its authority ends,
``renew_deadline`` after the start of its last renewal, and the work must stop before another candidate may lead.

Candidates poll every ``retry_period``, because expiry is the absence of a change, which no watch reports.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import Gauge

from controller_runtime import resources
from controller_runtime.leaderelection.candidate import Candidate, new_identity

_LEADER = Gauge("virtual_node_leader", "1 while this process leads, else 0.", ["name"])

JITTER = 1.2
"""The longest pause before a retry, as a multiple of ``retry_period``."""


@dataclass(eq=False, repr=False)
class LeaderElector:
    """One candidate.

    Raises:
        ValueError: the durations are inconsistent, or a name is empty.
    """

    client: resources.ObjectClient
    """Client of the cluster with the Lease."""
    _: KW_ONLY
    namespace: str
    """The Lease's namespace."""
    name: str
    """The Lease's name."""
    on_started: Callable[[], Awaitable[None]]
    """The leader's work. It is cancelled when the lease is lost, and must then stop within ``lease_duration -
    renew_deadline``."""
    identity: str = ""
    """Unique name of this candidate. Empty: host name, process id and a random part."""
    lease_duration: float = 15.0
    """Seconds without a renewal after which another candidate may lead."""
    renew_deadline: float = 10.0
    """Seconds after which a leader that cannot renew stops working."""
    retry_period: float = 2.0
    """Seconds between attempts to acquire and to renew."""
    release_on_cancel: bool = True
    """Whether to release the lease after the work has stopped, so that another candidate leads within a retry
    period."""
    metadata: Callable[[], Mapping[str, Any]] = dict
    """Returns labels and annotations to write to the Lease with each renewal; absent ones are kept."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Wall clock, for tests."""

    def __post_init__(self) -> None:
        for field, value in (("namespace", self.namespace), ("name", self.name)):
            if not value:
                raise ValueError(f"leader election: {field} is empty")
        if self.lease_duration < 1:
            raise ValueError("leader election: lease_duration must be at least 1 s")
        if not self.lease_duration > self.renew_deadline:
            raise ValueError("leader election: lease_duration must be greater than renew_deadline")
        if not self.renew_deadline > self.retry_period * JITTER:
            raise ValueError(f"leader election: renew_deadline must be greater than {JITTER} × retry_period")
        if self.retry_period <= 0:
            raise ValueError("leader election: retry_period must be greater than 0")
        self._candidate = Candidate(
            self.client,
            self.namespace,
            self.name,
            identity=self.identity or new_identity(),
            lease_duration=self.lease_duration,
            renew_deadline=self.renew_deadline,
            metadata=self.metadata,
            now=self.now,
        )
        self._spare = self.lease_duration - self.renew_deadline
        self._leader = _LEADER.labels(f"{self.namespace}/{self.name}")
        self._leader.set(0)
        self._log = self._candidate.log

    @property
    def is_leader(self) -> bool:
        """Report whether this candidate may work at this moment; correct even after the loop was stalled."""
        return self._candidate.is_holder

    @property
    def leader(self) -> str:
        """Return the identity of the lease's holder as last read; empty if none or unknown."""
        return self._candidate.holder

    async def run(self) -> None:
        """Acquire the lease and run the work; repeat after the lease was lost, until cancelled.

        Errors of the server only cause retries. Returns when the work ends by itself, or raises the work's
        exception. If cancelled while leading, it cancels the work and awaits it while still renewing the
        lease, then releases the lease.
        """
        while True:
            await self._acquire()
            if await self._lead():
                return

    async def _acquire(self) -> None:
        seen = ""
        while not await self._candidate.attempt():
            if self.leader != seen:
                seen = self.leader
                self._log.info("another process leads", leader=seen)
            await asyncio.sleep(self._pause())
        self._log.info("leading")

    async def _lead(self) -> bool:
        """Run the work while the lease can be renewed; return whether the work ended by itself."""
        self._leader.set(1)
        work = asyncio.ensure_future(self.on_started())
        renewing = asyncio.create_task(self._renew(), name=f"lease {self._candidate.name}")
        lost = False
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
            lost = renewing.done() and not work.done()
        finally:
            self._leader.set(0)
            await self._stop(work, renewing, lost=lost)
        if lost:
            return False
        work.result()
        return True

    async def _stop(self, work: asyncio.Future[None], renewing: asyncio.Task[None], *, lost: bool) -> None:
        """Stop the work, then the renewals, then release the lease; so no other candidate starts early."""
        if work.cancel():
            work.add_done_callback(self._log_failure)
        try:
            _, late = await asyncio.wait({work}, timeout=self._spare)
            if late:
                self._log.error(
                    "work has not stopped after its cancellation; waiting for it",
                    lost=lost,
                    after_seconds=self._spare,
                )
                await asyncio.wait({work})
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            if not work.done():  # this task was cancelled again: do not release, the lease must expire
                self._candidate.give_up()
        if not lost and self.release_on_cancel and self.is_leader:
            await self._candidate.release()
        self._candidate.give_up()

    def _log_failure(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            self._log.error("work failed while stopping", exc_info=error)

    async def _renew(self) -> None:
        """Renew until the lease is lost; mark it lost before the work is cancelled."""
        await self._renew_while_possible()
        # ``is_leader`` could still be true: a timer may fire a nanosecond early, and another candidate may
        # take the lease long before the deadline.
        self._candidate.give_up()

    async def _renew_while_possible(self) -> None:
        """Renew until no renewal has succeeded for ``renew_deadline``, or another candidate holds the lease."""
        candidate = self._candidate
        while True:
            try:
                async with asyncio.timeout_at(candidate.authority_ends):
                    await asyncio.sleep(self._pause())
                    while not await candidate.attempt():
                        if self.leader != candidate.identity:
                            self._log.error("lease lost", leader=self.leader)
                            return
                        await asyncio.sleep(self._pause())
            except TimeoutError:
                self._log.error("lease not renewed in time", seconds=candidate.renew_deadline)
                return

    def _pause(self) -> float:
        return self.retry_period * random.uniform(1, JITTER)  # noqa: S311 - jitter
