"""One candidate for a Lease: single attempts, and how long they give it authority.

The protocol is client-go's (``tools/leaderelection``). A candidate judges a lease by *its own* monotonic
clock: the holder has ``leaseDurationSeconds`` from the moment this candidate last *saw* the record change.
The holder's timestamps are only informative; clocks may differ by any amount, but must run at similar rates.
Writes carry the resourceVersion, so of two candidates that see a lease expire, one gets a conflict.

The authority of a holder ends ``renew_deadline`` after the *start* of its last successful write. Other
candidates wait ``lease_duration`` from a later moment. What the holder began must end within the difference.
Three risks remain, as in client-go: work that takes longer than this, a manual deletion of the Lease, and a
suspended machine, whose monotonic clock stops. Timers of a stalled event loop fire late, so check
``is_holder`` before any action that must not be done twice.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from controller_runtime import log, resources
from controller_runtime.apimachinery.timestamps import micro_time
from controller_runtime.errors import AlreadyExists, Conflict, NotFound
from controller_runtime.util import clock


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
        return self._renewed_at is not None and clock.now() < self.authority_ends

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
        """End the authority at once; the Lease stays as it is, and expires."""
        self._renewed_at = None

    async def attempt(self) -> bool:
        """Try once to acquire or renew, within half the renew deadline; return success and never raise."""
        started, limit = clock.now(), self.renew_deadline / 2
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
        """End the authority, then release the Lease. If that fails, it expires."""
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
            self._observed_at = clock.now()
        self._lease = lease

    def _is_taken(self) -> bool:
        """Report whether another candidate holds the lease, as last read, and the lease has not expired."""
        if self.holder in {"", self.identity}:
            return False
        duration = float(spec_of(self._lease).get("leaseDurationSeconds") or self.lease_duration)
        return clock.now() < self._observed_at + duration


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
