"""Calls the jobs' handlers that ``state.decide`` selects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from swarm.worker.jobs.state import Action, Held, Job, Phase, decide, ended

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
