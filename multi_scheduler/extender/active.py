"""Lets one process of several answer the scheduler: the process that holds a Lease.

Reservations are in the memory of a process, so two processes that answer could promise the same room. A process takes
the Lease when a scheduler calls it, because the Service decides which replica is called. It renews the Lease while
calls arrive, and releases it after some seconds without calls, or when it stops.

A process that took the Lease from another one answers only when it knows all pods that the other one bound. It binds
only pods that it filtered since then: others were promised room by the earlier holder, in reservations that it does not
know. See ``leaderelection.candidate`` for the clock and for the remaining risks.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field

from prometheus_client import Gauge

from controller_runtime import log, resources
from controller_runtime.errors import ApiError
from controller_runtime.leaderelection import Candidate, Term
from controller_runtime.util import event_loop
from multi_scheduler.extender.extender import NotReadyError

AUTHORITY_SECONDS = 10.0
"""Seconds after the start of the last renewal in which the holder answers."""
LEASE_SECONDS = 15.0
"""Seconds without a renewal after which another process may take the Lease."""
RENEW_SECONDS = 5.0
IDLE_SECONDS = 15.0
"""Seconds without calls after which the Lease is released."""
RETRY_SECONDS = 1.0
"""Seconds between a failed attempt to acquire or renew and the next one."""
_MOMENT = 0.001
"""Seconds by which a timer may be early."""


class Verdict(enum.Enum):
    """What to do with a call."""

    ANSWER = enum.auto()
    WAIT = enum.auto()
    """The process may become active within a moment."""
    REFUSE = enum.auto()


class Step(enum.Enum):
    """What to do with the Lease."""

    ATTEMPT = enum.auto()
    """Acquire or renew it."""
    RELEASE = enum.auto()
    REST = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a process knows at a moment. Times are in seconds."""

    authority_left: float = 0.0
    """Seconds for which this replica may still answer; 0 or less: it may not."""
    knows_bound_pods: bool = True
    """Whether all pods that an earlier holder bound are known."""
    is_stopping: bool = False
    is_attempting: bool = False
    since_attempt: float = float("inf")
    """Since the last attempt to acquire or renew ended."""
    calls: int = 0
    """Calls that wait or are processed."""
    since_call: float = float("inf")
    """Since the last call ended."""
    other_holder: str = ""
    """Identity of the other process that holds the Lease, as last read."""
    lease_error: str = ""
    """Why the last attempt to acquire or renew failed."""
    list_error: str = ""
    """Why the bound pods are not known."""

    @property
    def verdict(self) -> Verdict:
        """Return what to do with a call."""
        if self.is_stopping:
            return Verdict.REFUSE
        if self.authority_left > 0:
            return Verdict.ANSWER if self.knows_bound_pods else Verdict.WAIT
        can_try = self.is_attempting or self.since_attempt >= RETRY_SECONDS
        return Verdict.WAIT if can_try else Verdict.REFUSE

    @property
    def next_step(self) -> tuple[Step, float]:
        """Return what to do with the Lease, and the seconds to rest if no call arrives."""
        until_retry = RETRY_SECONDS - self.since_attempt
        until_idle = float("inf")
        if self.authority_left > 0:
            until_idle = until_idle if self.calls else IDLE_SECONDS - self.since_call
            until_attempt = max(until_retry, self.authority_left - (AUTHORITY_SECONDS - RENEW_SECONDS))
        else:
            until_attempt = until_retry if self.calls else float("inf")
        if until_idle <= _MOMENT:
            return Step.RELEASE, 0.0
        if until_attempt <= _MOMENT:
            return Step.ATTEMPT, 0.0
        return Step.REST, min(until_idle, until_attempt)

    def refusal(self, lease: str) -> str:
        """Return why a call is refused, and what to do; ``lease`` is the Lease's namespace and name."""
        if self.is_stopping:
            return "this replica is stopping; another one answers when kube-scheduler tries again"
        if self.authority_left > 0:
            error = f": {self.list_error}" if self.list_error else ""
            return f"this replica has just become active and does not know all bound pods yet{error}"
        if self.lease_error:
            return f"Lease {lease} cannot be acquired or renewed: {self.lease_error}"
        if self.other_holder:
            return (
                f"{self.other_holder} is the active replica (holder of Lease {lease}); this one takes over "
                f"{LEASE_SECONDS:g} s after that one stopped. If this error stays, schedulers call both replicas: run one "
                "replica (multiScheduler.replicas)"
            )
        return f"Lease {lease} is not acquired or renewed yet"


BIND_SECONDS = 4.0
"""Time limit of a binding. It may start at the end of the authority, and must end before another process takes the Lease."""
SETTLE_SECONDS = 2.0
"""Seconds after a takeover until the bound pods are listed. kube-scheduler binds in the background, so a pod that the earlier
holder has just promised room may not be bound yet."""
_WAIT_SECONDS = 4.0
"""Seconds that a call waits until this process is active. A filter call may take two seconds more, and its limit is ten
(``scheduler_configuration``)."""
_CATCH_UP_SECONDS = 30.0
_MOST_FILTERED = 50_000
_ACTIVE = Gauge(
    "virtual_node_extender_active",
    "1 while this process answers the scheduler because it holds the Lease of --active-lease, else 0.",
)


class NotActiveError(NotReadyError):
    """Another process answers, or this one cannot know that none does; the scheduler should retry."""


def lease_candidate(client: resources.ObjectClient, namespace: str, name: str) -> Candidate:
    """Return a candidate for the Lease with the times of this module."""
    return Candidate(client, namespace, name, lease_duration=LEASE_SECONDS, renew_deadline=AUTHORITY_SECONDS)


@dataclass(eq=False, repr=False)
class ActiveReplica:
    """Decides for each call whether this process may answer. ``run`` acquires, renews and releases the Lease."""

    candidate: Candidate
    _: KW_ONLY
    catch_up: Callable[[], Awaitable[None]]
    """Returns when all pods that are bound now are known; raises ApiError if they cannot be listed."""
    binds: bool = False
    """Whether this process binds pods."""
    _term: Term | None = field(default=None, init=False)
    """The term in which this process held the Lease last, or the next one after its own release."""
    _knows: bool = field(default=False, init=False)
    _list_error: str = field(default="", init=False)
    """Why the last attempt to catch up failed."""
    _catching_up: asyncio.Task[None] | None = field(default=None, init=False)
    _filtered: dict[str, None] = field(default_factory=dict, init=False)
    """UIDs of pods that were filtered in this term and not bound, oldest first."""
    _is_stopping: bool = field(default=False, init=False)
    _is_attempting: bool = field(default=False, init=False)
    _attempted_at: float = field(default=float("-inf"), init=False)
    _called_at: float = field(default=float("-inf"), init=False)
    _calls: int = field(default=0, init=False)
    _bindings: int = field(default=0, init=False)
    _was_active: bool = field(default=False, init=False)
    _other: str = field(default="", init=False)
    """The other holder that was logged last."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set by a call that needs the Lease."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set, and replaced, when the verdict may have changed or a binding ended."""

    def __post_init__(self) -> None:
        self._log = log.get_logger(
            component="extender", lease=f"{self.candidate.namespace}/{self.candidate.name}"
        )
        _ACTIVE.set(0)

    @property
    def situation(self) -> Situation:
        """Return what this process knows now."""
        now = event_loop.now()
        return Situation(
            authority_left=self.candidate.authority_ends - now,
            knows_bound_pods=self._knows,
            is_stopping=self._is_stopping,
            is_attempting=self._is_attempting,
            since_attempt=now - self._attempted_at,
            calls=self._calls,
            since_call=now - self._called_at,
            other_holder=self._other_holder(),
            lease_error=self.candidate.trouble,
            list_error=self._list_error,
        )

    @contextlib.asynccontextmanager
    async def call(self, verb: str) -> AsyncIterator[None]:
        """Run the block, which decides about a call, only while this process is active.

        A binding is limited to ``BIND_SECONDS``. The result of other blocks is dropped if the authority ended meanwhile.

        Raises:
            NotActiveError: the call must not be answered.
        """
        self._calls += 1
        try:
            await self._activate()
            if verb == "bind":
                async with self._binding():
                    yield
                return
            term = self._term
            yield
            if self.situation.verdict is not Verdict.ANSWER or self._term != term:
                raise NotActiveError(self._refusal())
        finally:
            self._calls -= 1
            self._called_at = event_loop.now()

    def filtered(self, uid: str) -> None:
        """Record a pod that was filtered, so that it may be bound."""
        if not self.binds:
            return
        self._filtered.pop(uid, None)
        self._filtered[uid] = None
        if len(self._filtered) > _MOST_FILTERED:
            del self._filtered[next(iter(self._filtered))]

    def check_filtered(self, uid: str) -> None:
        """Allow one binding of a pod that was filtered in this term.

        Raises:
            NotActiveError: the room of the pod was promised by another process, or before this process started.
        """
        if uid not in self._filtered:
            raise NotActiveError(
                "another replica filtered this pod, so its reservation is not known; kube-scheduler must filter the pod again"
            )
        del self._filtered[uid]

    async def run(self) -> None:
        """Take, renew and release the Lease as calls arrive, until cancelled; then finish the bindings and release it."""
        try:
            while True:
                step, rest = self.situation.next_step
                if step is Step.ATTEMPT:
                    await self._attempt()
                elif step is Step.RELEASE:
                    await self._release()
                else:
                    await self._rest(rest)
        finally:
            await self._stop()

    async def _activate(self) -> None:
        """Wait until this process is active.

        Raises:
            NotActiveError: it is not, or not in time.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS):
                while self.situation.verdict is Verdict.WAIT:
                    self._wake.set()
                    await self._changed.wait()
        if self.situation.verdict is not Verdict.ANSWER:
            raise NotActiveError(self._refusal())

    @contextlib.asynccontextmanager
    async def _binding(self) -> AsyncIterator[None]:
        self._bindings += 1
        try:
            async with asyncio.timeout(BIND_SECONDS):
                yield
        except TimeoutError:
            raise NotActiveError(
                f"the API server did not answer within {BIND_SECONDS:g} s, so it is not known whether the pod is bound"
            ) from None
        finally:
            self._bindings -= 1
            self._notify()

    async def _attempt(self) -> None:
        """Acquire or renew the Lease once; begin a new term if another process may have held it in between."""
        self._is_attempting = True
        try:
            held = await self.candidate.attempt()
        finally:
            self._is_attempting = False
            self._attempted_at = event_loop.now()
        if held and self.candidate.term != self._term:
            self._begin()
        elif not held and self._other_holder():
            self.candidate.give_up()
        self._notify()

    def _begin(self) -> None:
        self._term = self.candidate.term
        self._knows = False
        self._list_error = ""
        self._filtered.clear()
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._log.info("took the lease; reading the bound pods")
        self._catching_up = asyncio.create_task(self._catch_up(), name="bound pods")

    async def _catch_up(self) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        while True:
            try:
                async with asyncio.timeout(_CATCH_UP_SECONDS):
                    await self.catch_up()
            except (ApiError, TimeoutError) as error:
                self._list_error = str(error) or "the informer is late"
                self._log.warning("bound pods not known yet", error=self._list_error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._knows = True
                self._notify()
                return

    async def _release(self) -> None:
        self._is_attempting = True  # calls wait, because this process may take the Lease again at once
        try:
            await self.candidate.release()
        finally:
            self._is_attempting = False
        if self._term is not None:
            self._term = self.candidate.term.next
        self._notify("no calls")

    async def _stop(self) -> None:
        self._is_stopping = True
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        self._notify("stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BIND_SECONDS):
                while self._bindings:
                    await self._changed.wait()
        if self.candidate.holder == self.candidate.identity and not self._bindings:
            await self.candidate.release()

    async def _rest(self, seconds: float) -> None:
        await event_loop.wait(self._wake, None if seconds == float("inf") else seconds)
        self._wake.clear()
        self._report()

    def _notify(self, reason: str = "") -> None:
        """Let waiting calls check the verdict again, and report a change."""
        self._report(reason)
        self._changed.set()
        self._changed = asyncio.Event()

    def _report(self, reason: str = "") -> None:
        is_active = self.situation.verdict is Verdict.ANSWER
        if is_active != self._was_active:
            self._was_active = is_active
            _ACTIVE.set(is_active)
            if is_active:
                self._log.info("this replica is active")
            else:
                self._log.info("this replica is not active any more", reason=reason or self._refusal())
        if (other := self._other_holder()) != self._other:
            self._other = other
            if other:
                self._log.info("another replica is active", holder=other)

    def _other_holder(self) -> str:
        """Return the other process that holds the Lease; empty: none."""
        holder = self.candidate.holder
        return "" if holder == self.candidate.identity else holder

    def _refusal(self) -> str:
        return self.situation.refusal(f"{self.candidate.namespace}/{self.candidate.name}")
