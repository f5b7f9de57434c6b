"""Runs each job as an asyncio task, for jobs that are a single coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from swarm.worker.identity import Settings
from swarm.worker.jobs.state import Job
from swarm.worker.worker import Worker


class Tasks:
    """Runs jobs that are one coroutine each.

    The coroutine runs as long as this worker has the job. To stop the job, the coroutine is cancelled; the job has stopped
    when the coroutine has returned. A coroutine that returns or raises earlier is started again after a pause.
    """

    def __init__(self, run: Callable[[Job], Awaitable[None]], settings: Settings | None = None) -> None:
        """Create the worker.

        Args:
            run: runs a job.
            settings: settings that override the environment.

        Raises:
            SetupError: a setting is missing.
        """
        self._run = run
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.worker = Worker(self._on_start, self._on_stop, settings)

    async def _on_start(self, job: Job) -> None:
        task = asyncio.ensure_future(self._run(job))
        self._tasks[job.name] = task
        task.add_done_callback(lambda ended: self._ended(job, ended))

    async def _on_stop(self, job: Job) -> None:
        task = self._tasks.pop(job.name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._tasks.get(job.name) is task:
            self.worker.failed(job, repr(error) if error else "ended by itself")
