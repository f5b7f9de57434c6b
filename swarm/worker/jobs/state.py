"""Decides which jobs to start and stop next, from wanted and held jobs. No IO.

A job is *held* from before its ``on_start`` is called until its ``on_stop`` has returned, and while it waits for a
restart. A held job must not run on any other worker.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_BASE, _LONGEST = 1.0, 60.0
"""Seconds before the second attempt, and the longest delay."""
_HEALTHY = 10.0
"""Seconds of running after which earlier failures do not count."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that this worker runs."""

    name: str
    token: int = 0
    """Fencing token: higher than that of every earlier owner of the job. A store that remembers the highest token and refuses
    lower ones is protected from an owner that was paused and has not noticed that it lost the job."""
    weight: float = 1.0


class Phase(enum.Enum):
    """Phase of a held job."""

    STARTING = "starting"
    """``on_start`` is running."""
    RUNNING = "running"
    STOPPING = "stopping"
    """``on_stop`` is running."""
    UNSTOPPED = "unstopped"
    """``on_stop`` failed and will be called again."""
    WAITING = "waiting"
    """Stopped after a failure; will be started again."""


class Action(enum.Enum):
    """A handler to call."""

    START = "start"
    STOP = "stop"
    """Also cancels a running ``on_start``."""


@dataclass(frozen=True, slots=True)
class Held:
    """A held job and its phase."""

    job: Job
    phase: Phase
    failures: int = 0
    """Consecutive failures."""
    since: float = 0.0
    """Loop time at which the phase began."""
    retry_at: float = 0.0
    error: str = ""
    """Error of the last failure; empty if the job has recovered or never failed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The held jobs after a decision, and the handlers to call."""

    held: dict[str, Held]
    actions: list[tuple[Action, Job]] = field(default_factory=list)
    wake_at: float | None = None
    """Loop time at which to decide again, even if nothing happens; None: not necessary."""


def decide(held: Mapping[str, Held], wanted: Mapping[str, Job], now: float) -> Decision:
    """Decide which handlers to call.

    Args:
        held: held jobs by name.
        wanted: jobs that must run, by name.
        now: loop time in seconds.
    """
    after: dict[str, Held] = {}
    actions: list[tuple[Action, Job]] = []
    for name, one in held.items():
        following, action = _next(one, wanted.get(name), now)
        if following is not None:
            after[name] = following
        if action is not None and following is not None:
            actions.append((action, following.job))
    for name, job in wanted.items():
        if name not in after:
            after[name] = Held(job, Phase.STARTING, since=now)
            actions.append((Action.START, job))
    return Decision(after, actions, min(filter(None, map(_due_at, after.values())), default=None))


def ended(held: Mapping[str, Held], name: str, error: str | None, now: float) -> dict[str, Held]:
    """Return the held jobs after a handler returned or a running job failed; call ``decide`` next.

    ``error`` is None if the handler did not fail. A failed start is stopped before the next attempt, because parts of it may run.
    """
    after = dict(held)
    one = held[name]
    if error is not None:
        failures = one.failures + 1
        # With ``now``, ``decide`` calls on_stop immediately.
        retry_at = now + _wait(failures) if one.phase is Phase.STOPPING else now
        after[name] = Held(one.job, Phase.UNSTOPPED, failures, since=now, retry_at=retry_at, error=error)
    elif one.phase is Phase.STARTING:
        after[name] = replace(one, phase=Phase.RUNNING, since=now)
    elif one.error:
        retry_at = now + _wait(one.failures)
        after[name] = replace(one, phase=Phase.WAITING, since=now, retry_at=retry_at)
    else:
        del after[name]
    return after


def _next(one: Held, wanted: Job | None, now: float) -> tuple[Held | None, Action | None]:
    """Return the job in its next phase (None: no longer held), and the handler to call (None: no handler)."""
    due = now >= (_due_at(one) or now)
    other = wanted is None or wanted.token != one.job.token
    match one.phase:
        case Phase.STARTING | Phase.RUNNING if other:
            return replace(one, phase=Phase.STOPPING, since=now, error=""), Action.STOP
        case Phase.RUNNING if one.error and due:
            return replace(one, failures=0, error=""), None
        case Phase.UNSTOPPED if due:
            return replace(one, phase=Phase.STOPPING, since=now), Action.STOP
        case Phase.WAITING if due or other:
            if wanted is None:
                return None, None
            return replace(one, job=wanted, phase=Phase.STARTING, since=now), Action.START
        case _:
            return one, None


def _due_at(one: Held) -> float | None:
    """Return the loop time at which ``decide`` must change the job without another event; None: never."""
    if one.phase in {Phase.WAITING, Phase.UNSTOPPED}:
        return one.retry_at
    if one.phase is Phase.RUNNING and one.error:
        return one.since + _HEALTHY
    return None


def _wait(failures: int) -> float:
    """Return the seconds before the next attempt after consecutive failures."""
    return min(_BASE * 2.0 ** min(failures - 1, 10), _LONGEST)
