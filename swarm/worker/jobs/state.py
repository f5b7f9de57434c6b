"""Which jobs to start and stop next: pure decisions over the wanted jobs and what runs.

A job is *held* from before its ``on_start`` is called until its ``on_stop`` has returned. A held job must not run anywhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_BASE, _LONGEST = 1.0, 60.0
"""Seconds before the second attempt, and the longest wait."""
_HEALTHY = 10.0
"""Seconds of running after which earlier failures do not count any more."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that this worker runs."""

    name: str
    token: int = 0
    """Fencing token: higher than that of every earlier owner of the job. A store that remembers the highest token it has
    seen, and refuses lower ones, is safe from an owner that was paused and does not know yet that it has lost the job."""
    weight: float = 1.0


class Phase(enum.Enum):
    """What happens with a held job."""

    STARTING = "starting"
    """``on_start`` is running."""
    RUNNING = "running"
    STOPPING = "stopping"
    """``on_stop`` is running."""
    UNSTOPPED = "unstopped"
    """``on_stop`` has failed and is called again later."""
    WAITING = "waiting"
    """Stopped after a failure; started again later."""


class Outcome(enum.Enum):
    """How a call of a handler, or a running job, has ended."""

    DONE = "done"
    FAILED = "failed"


class Action(enum.Enum):
    """A handler to call."""

    START = "start"
    STOP = "stop"
    """Cancels an ``on_start`` that is running."""


@dataclass(frozen=True, slots=True)
class Held:
    """A job that this worker has started and has not stopped."""

    job: Job
    phase: Phase
    failures: int = 0
    """Failures in a row."""
    since: float = 0.0
    """When the phase began."""
    retry_at: float = 0.0
    error: str = ""
    """Why it failed last; empty while it does not fail."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The held jobs after a decision, and what to do."""

    held: dict[str, Held]
    actions: list[tuple[Action, Job]] = field(default_factory=list)
    wake_at: float | None = None
    """When to decide again, if nothing happens before."""


def decide(held: Mapping[str, Held], wanted: Mapping[str, Job], now: float) -> Decision:
    """Decide which handlers to call.

    Args:
        held: by name.
        wanted: the jobs that must run, by name.
        now: seconds of the clock that ``retry_at`` has.
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


def ended(held: Mapping[str, Held], name: str, outcome: Outcome, error: str, now: float) -> dict[str, Held]:
    """The held jobs after a handler has returned or a running job has failed; call ``decide`` next.

    A start that failed is stopped before the next attempt, because a part of it may run.
    """
    after = dict(held)
    one = held[name]
    if outcome is Outcome.FAILED:
        failures = one.failures + 1
        # A past time has ``decide`` call on_stop at once.
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
    """The job's next phase, None when it is not held any more, and the handler to call."""
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
    """When the job's phase changes by the passing of time alone."""
    if one.phase in {Phase.WAITING, Phase.UNSTOPPED}:
        return one.retry_at
    if one.phase is Phase.RUNNING and one.error:
        return one.since + _HEALTHY
    return None


def _wait(failures: int) -> float:
    """Seconds before the next attempt after some failures in a row."""
    return min(_BASE * 2.0 ** min(failures - 1, 10), _LONGEST)
