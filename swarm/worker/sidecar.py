"""``virtual-node-swarm worker``: the sidecar, which starts and stops one process per job.

The processes of a job are found by a mark in their environment, which children inherit. A process group is not enough: a
grandchild can leave it, and a restarted sidecar does not know the groups that a killed sidecar left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import dataclasses
import hashlib
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from swarm.worker import fence
from swarm.worker.identity import Settings, SetupError
from swarm.worker.jobs import Job
from swarm.worker.worker import Worker

_log = logging.getLogger(__name__)

PROGRAM = "virtual-node-swarm worker"
_LEVELS = ("debug", "info", "warning", "error")
_GRACE = 10.0
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
_LINE = 64 * 1024
"""Bytes after which a line is split."""
_PR_SET_CHILD_SUBREAPER = 36
VARIABLE = "VIRTUAL_NODE_SWARM_PROCESS"


class Output:
    """The file that all processes print to.

    A thread writes, so that a blocked reader blocks the processes and not the event loop.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="output")

    async def copy(self, pipe: int, prefix: str) -> None:
        """Copy a pipe until all processes have closed it, then close it."""
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader(limit=_LINE)
        # The transport closes the file.
        file = os.fdopen(pipe, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), file)
        start, rest = prefix.encode() + b" ", b""
        try:
            while chunk := await stream.read(_LINE):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) >= _LINE:
                    lines, rest = [*lines, rest], b""
                if lines:
                    await loop.run_in_executor(
                        self._writer, self._write, b"".join(start + line + b"\n" for line in lines)
                    )
            if rest:
                await loop.run_in_executor(self._writer, self._write, start + rest + b"\n")
        finally:
            transport.close()

    def _write(self, data: bytes) -> None:
        # If our output is closed, the jobs' pipes are still read, so that the jobs do not end by SIGPIPE.
        with contextlib.suppress(OSError, ValueError):
            self._file.write(data)
            self._file.flush()


class Reaper:
    """Collects exit codes. Only one Reaper may exist in a process, and nothing else may wait for children."""

    def __init__(self) -> None:
        self._expected: dict[int, asyncio.Future[int]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Become the parent of orphaned descendants, like PID 1 of a container, and reap within the block."""
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)

    def expect(self, pid: int) -> asyncio.Future[int]:
        """Return a future of a child's exit code in ``subprocess``' form: negative for a signal.

        Call it in the event loop turn that starts the child, or the exit code may be lost.
        """
        return self._expected.setdefault(pid, asyncio.get_running_loop().create_future())

    def _reap(self) -> None:
        # One SIGCHLD may stand for several children.
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                expected = self._expected.pop(pid, None)
                if expected is not None and not expected.done():
                    expected.set_result(os.waitstatus_to_exitcode(status))


def mark_of(worker: str, job: str = "") -> str:
    """Return the mark of a job's processes; without a job, the common prefix of all marks of the worker."""
    prefix = hashlib.sha256(worker.encode()).hexdigest()[:16] + "-"
    return prefix + hashlib.sha256(job.encode()).hexdigest()[:32] if job else prefix


def marked(prefix: str, *, outside: int | None = None) -> list[int]:
    """Return ids of living processes with a mark that begins with the prefix, except this process.

    A process of another user, or one that changed its user, is not found if its environment cannot be read.

    Args:
        prefix: see ``mark_of``.
        outside: leave out members of this process group.
    """
    wanted = f"{VARIABLE}={prefix}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                # The environment of a zombie is empty, so zombies are not found.
                environment = Path(entry.path, "environ").read_bytes()
                process = int(entry.name)
                if any(one.startswith(wanted) for one in environment.split(b"\0")) and (
                    outside is None or os.getpgid(process) != outside
                ):
                    found.append(process)
    return found


def send(number: signal.Signals, processes: list[int]) -> None:
    """Send a signal to the processes that still exist."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def group_exists(leader: int) -> bool:
    """Report whether a process group has members, including zombies."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def send_group(number: signal.Signals, leader: int) -> None:
    """Send a signal to a process group if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


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
        while left := marked(mark_of(self.worker)):
            _log.warning("killing processes of an earlier sidecar: %s", left)
            send(signal.SIGKILL, left)
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
        mark = mark_of(self.worker, job.name)
        kill_at = fence.now() + self.grace
        send_group(signal.SIGTERM, leader.pid)
        send(signal.SIGTERM, marked(mark, outside=leader.pid))
        while self._lives(leader, mark):
            if fence.now() >= min(kill_at, self.stop_by() or kill_at):
                send_group(signal.SIGKILL, leader.pid)
                send(signal.SIGKILL, marked(mark))
            await asyncio.sleep(_POLL)

    async def close(self) -> None:
        """Wait until all output has been copied."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_OUTPUT)

    def _lives(self, leader: _Leader, mark: str) -> bool:
        # ``marked`` is last, because it reads the environments of all processes.
        return not leader.exit.done() or group_exists(leader.pid) or bool(marked(mark))

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
            VARIABLE: mark_of(self.worker, job.name),
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


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sidecar's flags. Flags that are not given are read from the environment (``docs/use/swarm.md``)."""
    parser.add_argument(
        "--exec",
        required=True,
        metavar="COMMAND",
        help="command of one job, split like a shell does, without a shell; {job} and {token} are replaced",
    )
    for name, text in (
        ("swarm", "name of the Swarm (SWARM_NAME)"),
        ("namespace", "its namespace (SWARM_NAMESPACE, POD_NAMESPACE, the service account's)"),
        ("worker", "name of this pod (SWARM_WORKER, POD_NAME, HOSTNAME)"),
        ("pod-uid", "UID of this pod in the upper cluster (SWARM_POD_UID, the service account token's)"),
        ("api-server", "URL of the upper cluster's API server (SWARM_API_SERVER)"),
        ("token-file", "bearer token (SWARM_TOKEN_FILE, the service account's)"),
        ("ca-file", "CA of the API server (SWARM_CA_FILE, the service account's)"),
        ("client-cert-file", "client certificate (SWARM_CLIENT_CERT_FILE)"),
        ("client-key-file", "its key (SWARM_CLIENT_KEY_FILE)"),
        ("file", "read the share from this file or directory instead of the API (SWARM_FILE)"),
    ):
        parser.add_argument(f"--{name}", default="", metavar=name.split("-")[-1].upper(), help=text)
    for name, metavar, kind, default, text in (
        ("http-port", "N", int, None, "status and metrics (HTTP_PORT, 9090; 0: none)"),
        ("drain-seconds", "S", float, 25.0, "time to stop all jobs after SIGTERM (25)"),
        ("kill-seconds", "S", float, _GRACE, "between a job's SIGTERM and SIGKILL (10)"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=text)
    parser.add_argument("--log-level", default="info", choices=_LEVELS, help="(info)")


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run the sidecar until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(
        program, description="Runs one worker of a Swarm, with a process per job."
    )
    _add_arguments(parser)
    flags = parser.parse_args(argv)
    logging.basicConfig(
        level=flags.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        return asyncio.run(_run(flags))
    except SetupError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)  # noqa: T201 - for the user
        return 1


async def _run(flags: argparse.Namespace) -> int:
    try:
        arguments(flags.exec, Job("job"))
    except ValueError as error:
        raise SetupError(f"--exec: {error}") from error
    processes = Processes(
        flags.exec,
        reaper=(reaper := Reaper()),
        grace=flags.kill_seconds,
        ended=lambda job, text: worker.failed(job, text),  # noqa: PLW0108 - ``worker`` is created below
        stop_by=lambda: worker.stop_by,
    )
    worker = Worker(
        processes.on_start,
        processes.on_stop,
        _settings(flags),
        prepare=processes.end_orphans,
        exits=processes.exits,
    )
    processes.worker = worker.identity
    with reaper.running():
        try:
            return await worker.run()
        finally:
            await processes.close()


def _settings(flags: argparse.Namespace) -> Settings:
    given = vars(flags)
    return Settings(**{field.name: given[field.name] for field in dataclasses.fields(Settings)})
