"""Finds the processes of a job by a mark in their environment, which children inherit.

A process group is not enough: a grandchild can leave it, and a restarted sidecar does not know the groups that a killed
sidecar left behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from pathlib import Path

VARIABLE = "VIRTUAL_NODE_SWARM_PROCESS"


def mark(worker: str, job: str = "") -> str:
    """Return the mark of a job's processes; without a job, the common prefix of all marks of the worker."""
    prefix = hashlib.sha256(worker.encode()).hexdigest()[:16] + "-"
    return prefix + hashlib.sha256(job.encode()).hexdigest()[:32] if job else prefix


def marked(prefix: str, *, outside: int | None = None) -> list[int]:
    """Return ids of living processes with a mark that begins with the prefix, except this process.

    A process of another user, or one that changed its user, is not found if its environment cannot be read.

    Args:
        prefix: see ``mark``.
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
