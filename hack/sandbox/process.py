"""Processes that the sandbox starts, and stops by pid; a pid file for each makes them known to other commands."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hack.sandbox.errors import SandboxError

_STOP_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a process by pid and start time, because another process may have got the pid since."""

    pid: int
    started: str
    """Start time in ticks since boot, from /proc; empty: the process ended before the read."""

    def alive(self) -> bool:
        """Report whether exactly this process still runs."""
        return bool(self.started) and start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the process' whole session; return False when it has ended.

        Raises:
            SandboxError: it is another user's, and this process is not root.
        """
        if not self.alive():
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            raise SandboxError(f"pid {self.pid} was started by another user; stop it as that user") from None
        return True

    def write(self, path: Path) -> None:
        """Write the identity to a pid file, for ``read``."""
        path.write_text(f"{self.pid} {self.started}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the content of a pid file; None if it is missing or not written by ``write``."""
        try:
            pid, started = path.read_text(encoding="utf-8").split()
            return cls(int(pid), started)
        except (OSError, ValueError):
            return None


def start_time(pid: int) -> str:
    """Return a process' start time; empty when it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]


async def stop(
    identity: Identity, *, seconds: float = _STOP_SECONDS, first: signal.Signals = signal.SIGTERM
) -> None:
    """Send ``first`` to a process, and SIGKILL after ``seconds``; return when the process has ended.

    Raises:
        SandboxError: it is another user's, and this process is not root.
    """
    if not identity.signal(first):
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while identity.alive():
        if loop.time() > deadline:
            identity.signal(signal.SIGKILL)
            deadline = loop.time() + seconds
        await asyncio.sleep(0.02)


class Process:
    """One supervised program: restartable, its output in a log file."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        directory: Path,
        env: Mapping[str, str] | None = None,
        dies_with_parent: bool = False,
    ) -> None:
        """Create a process that ``start`` runs.

        Args:
            name: for messages and the log file.
            argv: program and arguments.
            directory: for its log and its pid file.
            env: added to this process's environment.
            dies_with_parent: killed by the kernel when this process ends, so that crashed tests leave no process.
        """
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.log = directory / f"{name}.log"
        self.pid_file = directory / f"{name}.pid"
        self.identity: Identity | None = None
        self._env = dict(env or {})
        self._dies_with_us = dies_with_parent
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Return the pid; 0 if the process was never started."""
        return self.identity.pid if self.identity is not None else 0

    @property
    def running(self) -> bool:
        """Report whether the process runs."""
        return self.identity is not None and self.identity.alive()

    async def start(self) -> None:
        """Start the process, also after it has ended.

        Raises:
            SandboxError: the program cannot be started.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**os.environ, **self._env},
                    start_new_session=True,
                    preexec_fn=_die_with_parent if self._dies_with_us else None,
                )
            except OSError as error:
                raise SandboxError(f"{self.name}: cannot start {self.argv[0]}: {error.strerror}") from None
        self.identity = Identity(self._process.pid, start_time(self._process.pid))
        self.identity.write(self.pid_file)

    async def stop(self, *, seconds: float = _STOP_SECONDS) -> None:
        """Stop the process: SIGTERM, then SIGKILL."""
        if self.identity is not None:
            await stop(self.identity, seconds=seconds)
        await self._reap()

    async def kill(self) -> None:
        """Kill the process, as in a crash (SIGKILL)."""
        if self.identity is not None:
            await stop(self.identity, first=signal.SIGKILL)
        await self._reap()

    def check(self) -> None:
        """Raise an error if the process does not run.

        Raises:
            SandboxError: it has ended; quotes the end of its log.
        """
        if not self.running:
            raise SandboxError(f"{self.name} has ended: {self.last_line()} (log: {self.log})")

    def last_line(self) -> str:
        """Return the last line of the process's log."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].strip()[:300] if lines else "no output"

    async def _reap(self) -> None:
        if self._process is not None:
            await self._process.wait()
            self._process = None
            self.pid_file.unlink(missing_ok=True)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
