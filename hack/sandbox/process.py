"""Processes that the sandbox starts, and stops by pid; a pid file each tells other commands of them."""

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
    """A process for sure: a pid alone may have been given to another one since."""

    pid: int
    started: str
    """Start time in ticks since boot, as /proc says; empty when it had ended before we could ask."""

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return bool(self.started) and start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Signal the process' whole session; False when it is gone.

        Raises:
            SandboxError: another user's, and we are not root.
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
        """Note it in a pid file, for ``read``."""
        path.write_text(f"{self.pid} {self.started}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What a pid file of ours says; None when it is none, or is gone."""
        try:
            pid, started = path.read_text(encoding="utf-8").split()
            return cls(int(pid), started)
        except (OSError, ValueError):
            return None


def start_time(pid: int) -> str:
    """A process' start time; empty when there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]


async def stop(
    identity: Identity, *, seconds: float = _STOP_SECONDS, first: signal.Signals = signal.SIGTERM
) -> None:
    """End a process, and wait until it is gone: the first signal, and SIGKILL once the seconds are over.

    Raises:
        SandboxError: another user's, and we are not root.
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
        dies_with_us: bool = False,
    ) -> None:
        """Set up; ``start`` runs it.

        Args:
            name: for messages and the log file.
            argv: program and arguments.
            directory: where its log and its pid file go.
            env: added to our environment.
            dies_with_us: killed by the kernel when we are, so that crashed tests leave nothing behind.
        """
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.log = directory / f"{name}.log"
        self.pid_file = directory / f"{name}.pid"
        self.identity: Identity | None = None
        self._env = dict(env or {})
        self._dies_with_us = dies_with_us
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The pid; 0 when it does not run."""
        return self.identity.pid if self.identity is not None else 0

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.identity is not None and self.identity.alive()

    async def start(self) -> None:
        """Run it (again).

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
        """End it: SIGTERM, then SIGKILL."""
        if self.identity is not None:
            await stop(self.identity, seconds=seconds)
        await self._reap()

    async def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL)."""
        if self.identity is not None:
            await stop(self.identity, first=signal.SIGKILL)
        await self._reap()

    def check(self) -> None:
        """Is it still there?

        Raises:
            SandboxError: it has ended; quotes the end of its log.
        """
        if not self.running:
            raise SandboxError(f"{self.name} has ended: {self.last_words()} (log: {self.log})")

    def last_words(self) -> str:
        """The last line of its log."""
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
