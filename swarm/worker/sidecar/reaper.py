"""Waits for every child of this process, including orphans that the kernel reparents to it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36


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
