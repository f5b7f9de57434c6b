"""Leader election on a Lease: at most one of several candidates works at a time.

The protocol is client-go's (``tools/leaderelection``). A candidate judges a lease by *its own* monotonic
clock: the holder has ``leaseDurationSeconds`` from the moment this candidate last *saw* the record change.
The holder's timestamps are only informative; clocks may differ by any amount, but must run at similar rates.
Writes carry the resourceVersion, so of two candidates that see a lease expire, one gets a conflict.

The authority of a holder ends ``renew_deadline`` after the *start* of its last successful write. Other
candidates wait ``lease_duration`` from a later moment. What the holder began must end within the difference.
Three risks remain, as in client-go: work that takes longer than this, a manual deletion of the Lease, and a
suspended machine, whose monotonic clock stops. Timers of a stalled event loop fire late, so check
``is_holder`` before any action that must not be done twice.

A ``Candidate`` acquires and renews the Lease. The leader cancels its work when its authority ends,
``renew_deadline`` after the start of its last renewal, and the work must stop before another candidate may lead.

Candidates poll every ``retry_period``, because expiry is the absence of a change, which no watch reports.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from prometheus_client import Gauge

from controller_runtime import log, resources
from controller_runtime.apimachinery.timestamps import micro_time
from controller_runtime.errors import AlreadyExists, ConfigError, Conflict, NotFound
from controller_runtime.process.flags import duration
from controller_runtime.process.program import HealthSettings
from controller_runtime.process.settings import PROCESS, UPPER, Positive, Setting
from controller_runtime.util import event_loop

_LEADER = Gauge("virtual_node_leader", "1 while this process leads, else 0.", ["name"])

JITTER = 1.2
"""The longest pause before a retry, as a multiple of ``retry_period``."""


def new_identity() -> str:
    """Return a unique name for a candidate: host name, process id and a random part."""
    return f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"


@dataclass(eq=False, repr=False)
class Candidate:
    """Acquires, renews and releases one Lease; its owner decides when."""

    client: resources.ObjectClient
    """Client of the cluster with the Lease."""
    namespace: str
    name: str
    _: KW_ONLY
    identity: str = field(default_factory=new_identity)
    lease_duration: float = 15.0
    """Seconds without a renewal after which another candidate may hold the Lease."""
    renew_deadline: float = 10.0
    """Seconds after the start of its last successful write in which this candidate has authority."""
    metadata: Callable[[], Mapping[str, Any]] = dict
    """Returns labels and annotations to write to the Lease with each renewal; absent ones are kept."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Wall clock, for tests."""
    trouble: str = field(default="", init=False)
    """Why the last attempt failed; empty if it did not, or another candidate wrote first."""
    _lease: dict[str, Any] | None = field(default=None, init=False)
    _observed_at: float = field(default=0.0, init=False)
    _renewed_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.log = log.get_logger(
            component="leader-election", lease=f"{self.namespace}/{self.name}", identity=self.identity
        )

    @property
    def is_holder(self) -> bool:
        """Report whether this candidate has authority at this moment; correct even after the loop was stalled."""
        return self._renewed_at is not None and event_loop.now() < self.authority_ends

    @property
    def authority_ends(self) -> float:
        """Return the time of the loop's clock at which the authority ends; in the past if there is none."""
        return float("-inf") if self._renewed_at is None else self._renewed_at + self.renew_deadline

    @property
    def holder(self) -> str:
        """Return the identity of the Lease's holder as last read; empty if none or unknown."""
        return holder_of(self._lease)

    @property
    def term(self) -> Term:
        """Return the term of the Lease as last read or written."""
        return term_of(self._lease)

    def give_up(self) -> None:
        """Stop leading at once; leave the Lease unchanged, so that it expires."""
        self._renewed_at = None

    async def attempt(self) -> bool:
        """Try once to acquire or renew, within half the renew deadline; return success and never raise."""
        started, limit = event_loop.now(), self.renew_deadline / 2
        try:
            async with asyncio.timeout(limit):
                held = await self._acquire_or_renew()
        except (AlreadyExists, Conflict):
            self.log.debug("another process wrote the lease first")
            return False
        except Exception as error:  # noqa: BLE001 - any error is retried after the retry period
            silent = (
                f"no answer within {limit:g} s" if isinstance(error, TimeoutError) else type(error).__name__
            )
            trouble = str(error) or silent
            report = self.log.debug if trouble == self.trouble else self.log.warning
            report("lease not acquired or renewed", error=trouble)
            self.trouble = trouble
            return False
        self.trouble = ""
        if held:
            self._renewed_at = started
        return held

    async def release(self) -> None:
        """Stop leading, then release the Lease. If the release fails, the Lease expires."""
        self._renewed_at = None
        try:
            async with asyncio.timeout(self.renew_deadline / 2):
                try:
                    await self._write(released(self._lease or {}, now=self.now()))
                except Conflict:  # caused by a renewal whose answer was not awaited
                    lease = await self.client.get(resources.LEASES, self.name, namespace=self.namespace)
                    if holder_of(lease) != self.identity:
                        return
                    await self._write(released(lease, now=self.now()))
        except Exception as error:  # noqa: BLE001 - the lease expires
            self.log.warning("lease not released", error=str(error) or type(error).__name__)
        else:
            self.log.info("lease released")

    async def _acquire_or_renew(self) -> bool:
        if self._renewed_at is not None and self._lease is not None:
            try:
                await self._write(self._held(self._lease))
            except (Conflict, NotFound):
                self.log.debug("lease changed; reading it")
            else:
                return True
        try:
            lease = await self.client.get(resources.LEASES, self.name, namespace=self.namespace)
        except NotFound:
            if self._is_taken():  # deleted, but its holder may not have noticed yet
                return False
            body = self._held(new(self.namespace, self.name))
            self._observe(await self.client.create(resources.LEASES, body, namespace=self.namespace))
            return True
        self._observe(lease)
        if self._is_taken():
            return False
        await self._write(self._held(lease))
        return True

    def _held(self, lease: dict[str, Any]) -> dict[str, Any]:
        lease = {**lease, "metadata": lease["metadata"] | self.metadata()}
        return held(lease, identity=self.identity, duration=self.lease_duration, now=self.now())

    async def _write(self, lease: dict[str, Any]) -> None:
        self._observe(await self.client.update(resources.LEASES, lease))

    def _observe(self, lease: dict[str, Any]) -> None:
        """Store the Lease; restart the time until its expiry only if its spec has changed."""
        if self._lease is None or spec_of(lease) != spec_of(self._lease):
            self._observed_at = event_loop.now()
        self._lease = lease

    def _is_taken(self) -> bool:
        """Report whether another candidate holds the lease, as last read, and the lease has not expired."""
        if self.holder in {"", self.identity}:
            return False
        duration = float(spec_of(self._lease).get("leaseDurationSeconds") or self.lease_duration)
        return event_loop.now() < self._observed_at + duration


class Term(NamedTuple):
    """The time in which one candidate holds a Lease."""

    lease: str
    """UID of the Lease, which changes if the Lease is deleted and created again."""
    transitions: int
    """Number of earlier changes of the holder."""

    @property
    def next(self) -> Term:
        """Return the term of the next holder."""
        return self._replace(transitions=self.transitions + 1)


def spec_of(lease: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Lease's spec; empty if there is none."""
    return (lease or {}).get("spec") or {}


def holder_of(lease: Mapping[str, Any] | None) -> str:
    """Return the holder's identity; empty if there is none."""
    return str(spec_of(lease).get("holderIdentity") or "")


def term_of(lease: Mapping[str, Any] | None) -> Term:
    """Return the current term of a Lease."""
    metadata = (lease or {}).get("metadata") or {}
    return Term(str(metadata.get("uid") or ""), int(spec_of(lease).get("leaseTransitions") or 0))


def new(namespace: str, name: str) -> dict[str, Any]:
    """Return a new Lease without a spec."""
    return {
        "apiVersion": resources.LEASES.api_version,
        "kind": resources.LEASES.kind,
        "metadata": {"name": name, "namespace": namespace},
    }


def held(lease: Mapping[str, Any], *, identity: str, duration: float, now: datetime) -> dict[str, Any]:
    """Return the Lease as a candidate writes it to acquire or renew it; other content is kept.

    The duration is rounded up to full seconds.
    """
    old = spec_of(lease)
    is_renewal = holder_of(lease) == identity
    stamp = micro_time(now)
    transitions = int(old.get("leaseTransitions") or 0)
    spec = old | {
        "holderIdentity": identity,
        "leaseDurationSeconds": math.ceil(duration),
        "acquireTime": (old.get("acquireTime") or stamp) if is_renewal else stamp,
        "renewTime": stamp,
        "leaseTransitions": transitions if is_renewal or not old else transitions + 1,
    }
    return {**lease, "spec": spec}


def released(lease: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """Return the Lease without a holder, so that any candidate can acquire it at once."""
    stamp = micro_time(now)
    free = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": stamp, "renewTime": stamp}
    return {**lease, "spec": spec_of(lease) | free}


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
        for what, value in (("namespace", self.namespace), ("name", self.name)):
            if not value:
                raise ValueError(f"leader election: {what} is empty")
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


class Election(msgspec.Struct, kw_only=True):
    """How replicas of a program elect the one that works."""

    enabled: Annotated[bool, Setting(PROCESS, "--leader-elect")] = True
    """Only one of several replicas works."""
    lease_duration: Annotated[float, Setting(PROCESS, "--leader-elect-lease-duration D", parse=duration)] = (
        15.0
    )
    """Time without renewal after which another replica takes over."""
    renew_deadline: Annotated[float, Setting(PROCESS, "--leader-elect-renew-deadline D", parse=duration)] = (
        10.0
    )
    """Time after which a leader that cannot renew its Lease stops working."""
    retry_period: Annotated[float, Setting(PROCESS, "--leader-elect-retry-period D", parse=duration)] = 2.0
    """Time between attempts to acquire or renew the Lease."""

    async def lead(
        self,
        client: resources.ObjectClient,
        work: Callable[[], Awaitable[None]],
        *,
        name: str,
        namespace: str,
    ) -> None:
        """Do the work while this replica leads, or at once without election, until cancelled.

        Args:
            client: a client of the cluster with the Lease.
            work: called for each term as leader; cancelled at the end of the term.
            name: name of the Lease.
            namespace: namespace of the Lease.
        """
        if not self.enabled:
            await work()
            return
        await LeaderElector(
            client,
            namespace=namespace,
            name=name,
            on_started=work,
            lease_duration=self.lease_duration,
            renew_deadline=self.renew_deadline,
            retry_period=self.retry_period,
        ).run()

    def check(self) -> None:
        """Check the times together.

        Raises:
            ConfigError: the times contradict each other; the message names the flags.
        """
        if not self.lease_duration > self.renew_deadline > self.retry_period * JITTER > 0:
            raise ConfigError(
                "--leader-elect-lease-duration must be more than --leader-elect-renew-deadline, "
                f"and that more than {JITTER} × --leader-elect-retry-period"
            )


class ControllerSettings(HealthSettings, kw_only=True):
    """The settings of a controller of which one of several replicas works."""

    qps: Annotated[Positive, Setting(UPPER, "--kube-api-qps N")] = 50.0
    """Requests per second."""
    burst: Annotated[int, Setting(UPPER, "--kube-api-burst N")] = 100
    """Burst of requests."""
    election: Election = msgspec.field(default_factory=Election)

    def check(self) -> None:
        """Check the settings together, see ``ProgramSettings.check``."""
        self.election.check()
