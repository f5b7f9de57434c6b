"""Check that enough of the machine's inotify instances are free for a sandbox.

Every component of Kubernetes watches the files it was started with, each file by an instance of its own, and
Linux gives a user 128 of them (``fs.inotify.max_user_instances``). A kubelet without one registers no node
and reports that only in its log, so the number is checked before anything starts. Counted on Kubernetes 1.34.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from hack.sandbox.errors import SandboxError

PER_CLUSTER = 9
"""kube-apiserver 6, kube-controller-manager 2, one to spare."""
PER_REAL_NODE = 8
"""kubelet 6, containerd 1, one to spare."""
_PATIENCE, _PAUSE = 240.0, 1.0
"""Seconds to wait for other sandboxes that are being stopped, and between two checks."""
_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.asynccontextmanager
async def reserved(count: int, *, directory: Path, patience: float = _PATIENCE) -> AsyncIterator[None]:
    """Wait until this user has ``count`` inotify instances left, and reserve them while the context lasts.

    A process takes its instances some seconds after its start. So two sandboxes that start at the same time would
    count the same free instances, if the reservation of each one did not count for the other.

    Args:
        count: instances that the processes started in the context will take.
        directory: of the reservations, the same for all sandboxes of this user; made if necessary.
        patience: seconds to wait.

    Raises:
        SandboxError: too few after ``patience`` seconds; the text says what to do.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            reservation = _reserve(count, directory)
        except SandboxError:
            if loop.time() > end:
                raise
            await asyncio.sleep(_PAUSE)
        else:
            break
    try:
        yield
    finally:
        os.close(reservation)


def _reserve(count: int, directory: Path) -> int:
    """Return the handle of a locked file whose name contains the count; closing it ends the reservation."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        require(count + _reserved_by_others(directory))
        handle, _path = tempfile.mkstemp(prefix=f"{count}-", dir=directory)
        fcntl.flock(handle, fcntl.LOCK_EX)
        return handle


def _reserved_by_others(directory: Path) -> int:
    """Return the sum of all reservations, and remove the files of those that have ended."""
    total = 0
    for path in directory.glob("*-*"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                total += int(path.name.partition("-")[0])
            else:
                path.unlink()
    return total


def require(count: int) -> None:
    """Raise an error if this user has too few instances left.

    Raises:
        SandboxError: too few; the text says what to do.
    """
    taken: list[int] = []
    try:
        for _ in range(count):
            handle = _LIBC.inotify_init1(os.O_CLOEXEC)
            if handle < 0:
                limit = _LIMIT.read_text(encoding="ascii").strip() if _LIMIT.exists() else "?"
                raise SandboxError(
                    f"{count} inotify instances are needed and {len(taken)} of this user's {limit} are left: stop "
                    "other sandboxes, or raise the limit (sysctl -w fs.inotify.max_user_instances=1024)"
                )
            taken.append(handle)
    finally:
        for handle in taken:
            with contextlib.suppress(OSError):
                os.close(handle)
