"""Jobs of one worker: their states and what to do next (``decide``, without IO), and the tasks that do it (``Runner``).

A job is *held* from before its ``on_start`` is called until its ``on_stop`` has returned, and while it waits for a
restart. A held job must not run on any other worker.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping
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


def _next(held: Held, wanted: Job | None, now: float) -> tuple[Held | None, Action | None]:
    """Return the job in its next phase (None: no longer held), and the handler to call (None: no handler)."""
    due = now >= (_due_at(held) or now)
    other = wanted is None or wanted.token != held.job.token
    match held.phase:
        case Phase.STARTING | Phase.RUNNING if other:
            return replace(held, phase=Phase.STOPPING, since=now, error=""), Action.STOP
        case Phase.RUNNING if held.error and due:
            return replace(held, failures=0, error=""), None
        case Phase.UNSTOPPED if due:
            return replace(held, phase=Phase.STOPPING, since=now), Action.STOP
        case Phase.WAITING if due or other:
            if wanted is None:
                return None, None
            return replace(held, job=wanted, phase=Phase.STARTING, since=now), Action.START
        case _:
            return held, None


def _due_at(held: Held) -> float | None:
    """Return the loop time at which ``decide`` must change the job without another event; None: never."""
    if held.phase in {Phase.WAITING, Phase.UNSTOPPED}:
        return held.retry_at
    if held.phase is Phase.RUNNING and held.error:
        return held.since + _HEALTHY
    return None


def _wait(failures: int) -> float:
    """Return the seconds before the next attempt after consecutive failures."""
    return min(_BASE * 2.0 ** min(failures - 1, 10), _LONGEST)


_log = logging.getLogger(__name__)

Handler = Callable[[Job], Awaitable[None]]


class Runner:
    """Runs the wanted jobs, with at most one handler call per job at a time."""

    def __init__(self, on_start: Handler, on_stop: Handler, changed: Callable[[], None]) -> None:
        """Start without jobs.

        Args:
            on_start: starts a job and returns.
            on_stop: stops a job and returns when it has stopped. Also called after a failed start.
            changed: called after each decision, because ``held`` may have changed.
        """
        self._handlers: Mapping[Action, Handler] = {Action.START: on_start, Action.STOP: on_stop}
        self._changed = changed
        self._wanted: Mapping[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.held: dict[str, Held] = {}
        """Jobs that run or may run."""
        self.failures = 0
        """Number of failures of handlers and running jobs."""

    def want(self, wanted: Mapping[str, Job]) -> None:
        """Set the jobs that must run. ``held`` contains them when this returns."""
        self._wanted = wanted
        self._decide()

    def failed(self, job: Job, error: str) -> None:
        """Handle a job that ended by itself: stop it, and start it again after a pause."""
        one = self.held.get(job.name)
        if one is not None and one.phase in {Phase.STARTING, Phase.RUNNING}:
            self._ended(job, error)

    async def idle(self) -> None:
        """Wait until no job runs."""
        await self._idle.wait()

    async def close(self) -> None:
        """Cancel running handlers."""
        if self._wake is not None:
            self._wake.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _decide(self) -> None:
        now = asyncio.get_running_loop().time()
        decision = decide(self.held, self._wanted, now)
        self.held = decision.held
        for action, job in decision.actions:
            before = self._tasks.get(job.name)
            self._tasks[job.name] = asyncio.create_task(
                self._call(action, job, before), name=f"{action.value} {job.name}"
            )
        if self._wake is not None:
            self._wake.cancel()
        if decision.wake_at is not None:
            self._wake = asyncio.get_running_loop().call_at(decision.wake_at, self._decide)
        if self.held:
            self._idle.clear()
        else:
            self._idle.set()
        self._changed()

    async def _call(self, action: Action, job: Job, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            # The job was stopped while it was starting.
            before.cancel()
            await asyncio.wait({before})
        try:
            await self._handlers[action](job)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._report(action, job, "cancelled")
        except Exception as error:  # noqa: BLE001 - the user's code: whatever it raises fails the job
            _log.exception("job %s: %s failed", job.name, action.value)
            self._report(action, job, str(error) or type(error).__name__)
        else:
            self._report(action, job, None)

    def _report(self, action: Action, job: Job, error: str | None) -> None:
        phase = {Action.START: Phase.STARTING, Action.STOP: Phase.STOPPING}[action]
        if self._tasks.get(job.name) is asyncio.current_task() and self.held[job.name].phase is phase:
            del self._tasks[job.name]
            self._ended(job, error)

    def _ended(self, job: Job, error: str | None) -> None:
        if error is not None:
            self.failures += 1
            _log.warning("job %s failed: %s", job.name, error)
        self.held = ended(self.held, job.name, error, asyncio.get_running_loop().time())
        self._decide()
