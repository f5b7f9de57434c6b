"""The sidecar's handlers, which start and stop one process per job."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

from swarm.worker import fence
from swarm.worker.jobs.state import Job
from swarm.worker.sidecar import marks
from swarm.worker.sidecar.output import Output
from swarm.worker.sidecar.reaper import Reaper

_log = logging.getLogger(__name__)

_POLL = 0.05
"""Seconds between checks of processes that must exit."""
_LAST_OUTPUT = 1.0
"""Seconds to wait at exit until the last output is copied."""
_LAUNCH = """\
import ctypes, os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the sidecar has exited")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
"""Sets PDEATHSIG and executes the command. A ``preexec_fn`` would not be safe with threads."""


class _Leader(NamedTuple):
    """The first process of a job and leader of its process group."""

    pid: int
    exit: asyncio.Future[int]


def arguments(template: str, job: Job) -> list[str]:
    """Return the command of a job: ``{job}`` and ``{token}`` are replaced within arguments and never parsed.

    Raises:
        ValueError: the template is empty or has unbalanced quotes.
    """
    words = shlex.split(template)
    if not words:
        raise ValueError("the command is empty")
    return [word.replace("{token}", str(job.token)).replace("{job}", job.name) for word in words]


@dataclass(eq=False)
class Processes:
    """Starts and stops the process of each job."""

    template: str
    """The command; see ``arguments``."""
    reaper: Reaper
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    ended: Callable[[Job, str], None]
    """Called with the job and the text ``exit code N`` when its process exits by itself."""
    stop_by: Callable[[], float | None]
    """Returns the time (``fence.now``) at which SIGKILL is sent even within the grace period, or None."""

    def __post_init__(self) -> None:
        self._outputs = Output(sys.stdout.buffer), Output(sys.stderr.buffer)
        self._leaders: dict[str, _Leader] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.worker = ""
        """Identity in the processes' marks; unique among the workers that share a process table."""
        self.exits: Counter[int] = Counter()
        """Exit code, or 128 + n for signal n → number of processes."""

    async def end_orphans(self) -> None:
        """Kill processes of an earlier sidecar of this worker. Call it before any job is started."""
        while left := marks.marked(marks.mark(self.worker)):
            _log.warning("killing processes of an earlier sidecar: %s", left)
            marks.send(signal.SIGKILL, left)
            await asyncio.sleep(_POLL)

    async def on_start(self, job: Job) -> None:
        """Start the job's process.

        Raises:
            OSError: the process cannot be started.
            ValueError: the job's name cannot be an argument.
        """
        leader = self._leaders[job.name] = self._spawn(job)
        _log.info("job %s: started process %d, fencing token %d", job.name, leader.pid, job.token)
        self._watch(self._report_end(job, leader))

    async def on_stop(self, job: Job) -> None:
        """End all processes of the job: SIGTERM, and SIGKILL after the grace period. Return when none is left."""
        leader = self._leaders.pop(job.name, None)
        if leader is None:
            return
        mark = marks.mark(self.worker, job.name)
        kill_at = fence.now() + self.grace
        marks.send_group(signal.SIGTERM, leader.pid)
        marks.send(signal.SIGTERM, marks.marked(mark, outside=leader.pid))
        while self._lives(leader, mark):
            if fence.now() >= min(kill_at, self.stop_by() or kill_at):
                marks.send_group(signal.SIGKILL, leader.pid)
                marks.send(signal.SIGKILL, marks.marked(mark))
            await asyncio.sleep(_POLL)

    async def close(self) -> None:
        """Wait until all output has been copied."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_OUTPUT)

    def _lives(self, leader: _Leader, mark: str) -> bool:
        # ``marked`` is last, because it reads the environments of all processes.
        return not leader.exit.done() or marks.group_exists(leader.pid) or bool(marks.marked(mark))

    async def _report_end(self, job: Job, leader: _Leader) -> None:
        code = await leader.exit
        shown = code if code >= 0 else 128 - code
        self.exits[shown] += 1
        _log.info("job %s: process %d has ended with exit code %d", job.name, leader.pid, shown)
        if self._leaders.get(job.name) is leader:
            self.ended(job, f"exit code {shown}")

    def _spawn(self, job: Job) -> _Leader:
        launch = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _LAUNCH,
            str(os.getpid()),
            *arguments(self.template, job),
        ]
        environment = {
            **os.environ,
            "SWARM_JOB": job.name,
            "SWARM_FENCING_TOKEN": str(job.token),
            marks.VARIABLE: marks.mark(self.worker, job.name),
        }
        pipes = os.pipe(), os.pipe()
        try:
            started = subprocess.Popen(  # noqa: S603 - running the user's command is its purpose
                launch,
                stdin=subprocess.DEVNULL,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError):
            for read, _ in pipes:
                os.close(read)
            raise
        finally:
            for _, write in pipes:
                os.close(write)
        started.returncode = 0  # the reaper waits for the process, so Popen must not
        for output, (read, _) in zip(self._outputs, pipes, strict=True):
            self._watch(output.copy(read, f"[{job.name}]"))
        return _Leader(started.pid, self.reaper.expect(started.pid))

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
