"""Leader election on a Lease: at most one of several candidates works at a time.

The protocol is client-go's (``tools/leaderelection``). A candidate judges a lease by *its own* monotonic
clock: the holder has ``leaseDurationSeconds`` from the moment this candidate last *saw* the record change.
The holder's timestamps are only informative; clocks may differ by any amount, but must run at similar rates.
Writes carry the resourceVersion, so of two candidates that see a lease expire, one gets a conflict.

The leader cancels its work ``renew_deadline`` after the *start* of its last successful renewal. Other
candidates wait ``lease_duration`` from a later moment. The work must stop within the difference. Three risks
remain, as in client-go: work that ignores its cancellation for longer, a manual deletion of the Lease, and a
suspended machine, whose monotonic clock stops. A stalled event loop delays the cancellation, so check
``is_leader`` before any action that must not be done twice.

Candidates poll every ``retry_period``, because expiry is the absence of a change, which no watch reports.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from prometheus_client import Gauge

from controller_runtime import log, resources
from controller_runtime.errors import AlreadyExists, Conflict, NotFound
from controller_runtime.leaderelection import record

_LEADER = Gauge("virtual_node_leader", "1 while this process leads, else 0.", ["name"])

JITTER = 1.2
"""The longest pause before a retry, as a multiple of ``retry_period``."""


class LeaderElector:
    """One candidate.

    Args:
        client: client of the cluster with the Lease.
        namespace: the Lease's namespace.
        name: the Lease's name.
        identity: unique name of this candidate. Empty: host name, process id and a random part.
        lease_duration: seconds without a renewal after which another candidate may lead.
        renew_deadline: seconds after which a leader that cannot renew stops working.
        retry_period: seconds between attempts to acquire and to renew.
        on_started: the leader's work. It is cancelled when the lease is lost, and must then stop within
            ``lease_duration - renew_deadline``.
        release_on_cancel: whether to release the lease after the work has stopped, so that another candidate
            leads within a retry period.
        metadata: returns labels and annotations to write to the Lease with each renewal; absent ones are kept.
        now: wall clock, for tests.

    Raises:
        ValueError: the durations are inconsistent, or a name is empty.
    """

    def __init__(
        self,
        client: resources.ObjectClient,
        *,
        namespace: str,
        name: str,
        on_started: Callable[[], Awaitable[None]],
        identity: str = "",
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        release_on_cancel: bool = True,
        metadata: Callable[[], Mapping[str, Any]] = dict,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        identity = identity or f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        for field, value in (("namespace", namespace), ("name", name)):
            if not value:
                raise ValueError(f"leader election: {field} is empty")
        if lease_duration < 1:
            raise ValueError("leader election: lease_duration must be at least 1 s")
        if not lease_duration > renew_deadline:
            raise ValueError("leader election: lease_duration must be greater than renew_deadline")
        if not renew_deadline > retry_period * JITTER:
            raise ValueError(f"leader election: renew_deadline must be greater than {JITTER} × retry_period")
        if retry_period <= 0:
            raise ValueError("leader election: retry_period must be greater than 0")
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._on_started = on_started
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        self._release_on_cancel = release_on_cancel
        self._metadata = metadata
        self._now = now
        self._lease: dict[str, Any] | None = None
        self._observed_at = 0.0
        self._renewed_at: float | None = None
        self._trouble = ""
        self._leader = _LEADER.labels(f"{namespace}/{name}")
        self._leader.set(0)
        self._log = log.get_logger(
            component="leader-election", lease=f"{namespace}/{name}", identity=identity
        )

    @property
    def is_leader(self) -> bool:
        """Report whether this candidate may work at this moment; correct even after the loop was stalled."""
        return self._renewed_at is not None and _time() < self._renewed_at + self._renew_deadline

    @property
    def leader(self) -> str:
        """Return the identity of the lease's holder as last read; empty if none or unknown."""
        return record.holder_of(self._lease)

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
        while not await self._try():
            if self.leader != seen:
                seen = self.leader
                self._log.info("another process leads", leader=seen)
            await asyncio.sleep(self._pause())
        self._log.info("leading")

    async def _lead(self) -> bool:
        """Run the work while the lease can be renewed; return whether the work ended by itself."""
        self._leader.set(1)
        work = asyncio.ensure_future(self._on_started())
        renewing = asyncio.create_task(self._renew(), name=f"lease {self._name}")
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
            spare = self._lease_duration - self._renew_deadline
            _, late = await asyncio.wait({work}, timeout=spare)
            if late:
                self._log.error(
                    "work has not stopped after its cancellation; waiting for it",
                    lost=lost,
                    after_seconds=spare,
                )
                await asyncio.wait({work})
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            if not work.done():  # this task was cancelled again: do not release, the lease must expire
                self._renewed_at = None
        if not lost and self._release_on_cancel and self.is_leader:
            await self._release()
        self._renewed_at = None

    def _log_failure(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            self._log.error("work failed while stopping", exc_info=error)

    async def _renew(self) -> None:
        """Renew until the lease is lost; mark it lost before the work is cancelled."""
        await self._renew_while_possible()
        # ``is_leader`` could still be true: a timer may fire a nanosecond early, and another candidate may
        # take the lease long before the deadline.
        self._renewed_at = None

    async def _renew_while_possible(self) -> None:
        """Renew until no renewal has succeeded for ``renew_deadline``, or another candidate holds the lease."""
        while True:
            assert self._renewed_at is not None
            deadline = self._renewed_at + self._renew_deadline
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(self._pause())
                    while not await self._try():
                        if self.leader != self._identity:
                            self._log.error("lease lost", leader=self.leader)
                            return
                        await asyncio.sleep(self._pause())
            except TimeoutError:
                self._log.error("lease not renewed in time", seconds=self._renew_deadline)
                return

    def _pause(self) -> float:
        return self._retry_period * random.uniform(1, JITTER)  # noqa: S311 - jitter

    async def _try(self) -> bool:
        """Try once to acquire or renew, within half the renew deadline; return success and never raise."""
        started = _time()
        try:
            async with asyncio.timeout(self._renew_deadline / 2):
                held = await self._acquire_or_renew()
        except (AlreadyExists, Conflict):
            self._log.debug("another process wrote the lease first")
            return False
        except Exception as error:  # noqa: BLE001 - any error is retried after the retry period
            trouble = str(error) or type(error).__name__
            log = self._log.debug if trouble == self._trouble else self._log.warning
            log("lease not acquired or renewed", error=trouble)
            self._trouble = trouble
            return False
        self._trouble = ""
        if held:
            self._renewed_at = started
        return held

    async def _acquire_or_renew(self) -> bool:
        if self._renewed_at is not None and self._lease is not None:
            try:
                await self._write(self._held(self._lease))
            except (Conflict, NotFound):
                self._log.debug("lease changed; reading it")
            else:
                return True
        try:
            lease = await self._client.get(resources.LEASES, self._name, namespace=self._namespace)
        except NotFound:
            if self._is_taken():  # deleted, but its holder may not have noticed yet
                return False
            body = self._held(record.new(self._namespace, self._name))
            self._observe(await self._client.create(resources.LEASES, body, namespace=self._namespace))
            return True
        self._observe(lease)
        if self._is_taken():
            return False
        await self._write(self._held(lease))
        return True

    def _held(self, lease: dict[str, Any]) -> dict[str, Any]:
        lease = {**lease, "metadata": lease["metadata"] | self._metadata()}
        return record.held(lease, identity=self._identity, duration=self._lease_duration, now=self._now())

    async def _write(self, lease: dict[str, Any]) -> None:
        self._observe(await self._client.update(resources.LEASES, lease))

    def _observe(self, lease: dict[str, Any]) -> None:
        """Store the Lease; restart the time until its expiry only if its spec has changed."""
        if self._lease is None or record.spec_of(lease) != record.spec_of(self._lease):
            self._observed_at = _time()
        self._lease = lease

    def _is_taken(self) -> bool:
        """Report whether another candidate holds the lease, as last read, and the lease has not expired."""
        if self.leader in {"", self._identity}:
            return False
        duration = float(record.spec_of(self._lease).get("leaseDurationSeconds") or self._lease_duration)
        return _time() < self._observed_at + duration

    async def _release(self) -> None:
        """Release the lease. If that fails, it expires."""
        self._renewed_at = None
        try:
            async with asyncio.timeout(self._renew_deadline / 2):
                try:
                    await self._write(record.released(self._lease or {}, now=self._now()))
                except Conflict:  # caused by a renewal whose answer was not awaited
                    lease = await self._client.get(resources.LEASES, self._name, namespace=self._namespace)
                    if record.holder_of(lease) != self._identity:
                        return
                    await self._write(record.released(lease, now=self._now()))
        except Exception as error:  # noqa: BLE001 - the lease expires
            self._log.warning("lease not released", error=str(error) or type(error).__name__)
        else:
            self._log.info("lease released")


def _time() -> float:
    return asyncio.get_running_loop().time()
