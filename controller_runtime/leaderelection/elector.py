"""Leader election on a Lease: of several candidates at most one works at a time.

The protocol is client-go's (``tools/leaderelection``). A candidate judges a lease by *its own* monotonic clock:
the holder has ``leaseDurationSeconds`` from the moment this candidate last *saw* the record change. The holder's
timestamps are for people; clocks may differ by any amount, only their rates must be alike. Writes carry the
resourceVersion, so of two candidates that see a lease expire one gets a conflict.

The leader counts from the *start* of its last successful renewal. ``renew_deadline`` after it, the work is
cancelled; others wait ``lease_duration`` from a moment that is later still. The difference is what the work has to
stop in. Two limits remain, as in client-go: work that ignores its cancellation for longer, and somebody deleting
the Lease by hand. A suspended machine's monotonic clock stands still, too; ``is_leader`` is worth asking before
anything that must not be done twice.

Candidates poll every ``retry_period``: expiry is the absence of a change, which no watch reports.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from prometheus_client import Gauge

from controller_runtime import log, resources
from controller_runtime.errors import AlreadyExists, Conflict, NotFound
from controller_runtime.leaderelection import record
from controller_runtime.resources import Resource

_LEADER = Gauge("virtual_node_leader", "1 while this process leads, else 0.", ["name"])

JITTER = 1.2
"""Factor by which a retry may be later than ``retry_period``; client-go's."""


class LeaseClient(Protocol):
    """What the elector needs of ``client.Client``."""

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """Read an object."""

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        """Create an object."""

    async def update(self, resource: Resource, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object of the same resourceVersion."""


class LeaderElector:
    """One candidate.

    Args:
        client: of the cluster that has the Lease.
        namespace: the Lease's.
        name: the Lease's.
        identity: of this candidate; no two may share one. A host name and a random part will do.
        lease_duration: seconds that others wait for a silent leader.
        renew_deadline: seconds after which a leader that cannot renew stops working.
        retry_period: seconds between tries, to acquire and to renew.
        on_started: the leader's work. It is cancelled when the lease is lost, and must then stop within
            ``lease_duration - renew_deadline``.
        release_on_cancel: give the lease back at a clean end, so that another leads within a retry period.
        now: the calendar, for tests.

    Raises:
        ValueError: the durations do not fit each other, or a name is empty.
    """

    def __init__(
        self,
        client: LeaseClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        on_started: Callable[[], Awaitable[None]],
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        release_on_cancel: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        for field, value in (("namespace", namespace), ("name", name), ("identity", identity)):
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
        """Whether this candidate may work at this very moment: right even when the loop was stalled."""
        return self._renewed_at is not None and _time() < self._renewed_at + self._renew_deadline

    @property
    def leader(self) -> str:
        """The holder's identity as last seen; empty when unknown or none."""
        return record.holder_of(self._lease)

    async def run(self) -> None:
        """Stand for election, lead, and stand again when the lease was lost, until cancelled.

        Trouble with the server, of whatever kind, is only ever a reason to try again. Ends also when the work
        ends by itself: normally, or with the exception that the work raised. Cancelled while leading, the work is
        cancelled and awaited (the lease is renewed meanwhile), then the lease released.
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
                self._log.info("another leads", leader=seen)
            await asyncio.sleep(self._pause())
        self._log.info("leading")

    async def _lead(self) -> bool:
        """Work while the lease can be renewed; tells whether the work ended by itself."""
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
        """End the work, then the renewals, then the lease: in this order nobody else can begin too early."""
        if work.cancel():
            work.add_done_callback(self._log_failure)
        try:
            spare = self._lease_duration - self._renew_deadline
            _, late = await asyncio.wait({work}, timeout=spare)
            if late:
                self._log.error("work does not stop; waiting for it", lost=lost, after_seconds=spare)
                await asyncio.wait({work})
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            if not work.done():  # cancelled once more: the lease must run out by itself
                self._renewed_at = None
        if not lost and self._release_on_cancel and self.is_leader:
            await self._release()
        self._renewed_at = None

    def _log_failure(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            self._log.error("work failed while stopping", exc_info=error)

    async def _renew(self) -> None:
        """Renew until the lease is lost; it counts as lost before the work hears of it."""
        await self._renew_while_possible()
        # A timer may come a nanosecond early, and a stolen lease long before its time.
        self._renewed_at = None

    async def _renew_while_possible(self) -> None:
        """Renew until that has not succeeded for ``renew_deadline``, or somebody else holds the lease."""
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
        """One try to acquire or renew, within half the renew deadline. Never raises."""
        started = _time()
        try:
            async with asyncio.timeout(self._renew_deadline / 2):
                held = await self._acquire_or_renew()
        except (AlreadyExists, Conflict):
            self._log.debug("somebody else was faster")
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the next try is due in a moment
            trouble = str(error) or type(error).__name__
            tell = self._log.debug if trouble == self._trouble else self._log.warning
            tell("no answer about the lease", error=trouble)
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
            if self._is_taken():  # deleted under a leader that may not have noticed yet
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
        return record.held(lease, identity=self._identity, duration=self._lease_duration, now=self._now())

    async def _write(self, lease: dict[str, Any]) -> None:
        self._observe(await self._client.update(resources.LEASES, lease))

    def _observe(self, lease: dict[str, Any]) -> None:
        """Remember the lease; the clock starts anew only when the record itself has changed."""
        if self._lease is None or record.spec_of(lease) != record.spec_of(self._lease):
            self._observed_at = _time()
        self._lease = lease

    def _is_taken(self) -> bool:
        """Whether somebody else holds the lease as last seen and has not been silent for too long."""
        if self.leader in {"", self._identity}:
            return False
        duration = float(record.spec_of(self._lease).get("leaseDurationSeconds") or self._lease_duration)
        return _time() < self._observed_at + duration

    async def _release(self) -> None:
        """Give the lease back. When that fails, it runs out by itself."""
        self._renewed_at = None
        try:
            async with asyncio.timeout(self._renew_deadline / 2):
                try:
                    await self._write(record.released(self._lease or {}, now=self._now()))
                except Conflict:  # a renewal whose answer we did not wait for
                    lease = await self._client.get(resources.LEASES, self._name, namespace=self._namespace)
                    if record.holder_of(lease) != self._identity:
                        return
                    await self._write(record.released(lease, now=self._now()))
        except Exception as error:  # noqa: BLE001 - the lease runs out
            self._log.warning("lease not released", error=str(error) or type(error).__name__)
        else:
            self._log.info("lease released")


def _time() -> float:
    return asyncio.get_running_loop().time()
