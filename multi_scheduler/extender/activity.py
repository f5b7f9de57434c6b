"""Decides when a process may answer the scheduler, and when it acquires, renews or releases the Lease. No IO."""

from __future__ import annotations

import enum
from dataclasses import dataclass

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
    """Until the authority ends; 0 or less: there is none."""
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
