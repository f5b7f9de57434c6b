"""Check that enough of the machine's inotify instances are free for a sandbox.

Every component of Kubernetes watches the files it was started with, each file by an instance of its own, and
Linux gives a user 128 of them (``fs.inotify.max_user_instances``), which is enough for three sandboxes with real nodes. A kubelet
without an instance registers no node and reports that only in its log. So the limit is raised as root, and the number is checked
before anything starts. The numbers below were counted on Kubernetes 1.34.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path

from hack.sandbox.errors import SandboxError

PER_CLUSTER = 9
"""kube-apiserver 6, kube-controller-manager 2, one to spare."""
PER_REAL_NODE = 8
"""kubelet 6, containerd 1, one to spare."""
_ENOUGH = 1024
"""Limit that root sets, as the documentation of kind recommends."""
_PATIENCE, _PAUSE = 240.0, 1.0
"""Seconds to wait for other sandboxes that are being stopped, and between two checks."""
_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
_LIBC = ctypes.CDLL(None, use_errno=True)


async def available(count: int) -> None:
    """Raise the machine's limit as root, and wait until this user has ``count`` inotify instances left.

    Raises:
        SandboxError: too few after four minutes; the text says what to do.
    """
    with contextlib.suppress(OSError):  # only root may raise the limit
        if int(_LIMIT.read_text(encoding="ascii")) < _ENOUGH:
            _LIMIT.write_text(f"{_ENOUGH}\n", encoding="ascii")
    loop = asyncio.get_running_loop()
    end = loop.time() + _PATIENCE
    while True:
        try:
            require(count)
        except SandboxError:
            if loop.time() > end:
                raise
            await asyncio.sleep(_PAUSE)
        else:
            return


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
