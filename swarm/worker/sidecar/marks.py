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
    """Return the mark of the processes of a worker's job, or the common prefix of all the worker's marks."""
    prefix = hashlib.sha256(worker.encode()).hexdigest()[:16] + "-"
    return prefix + hashlib.sha256(job.encode()).hexdigest()[:32] if job else prefix


def marked(prefix: str, *, outside: int | None = None) -> list[int]:
    """Return ids of living processes with a mark that begins with the prefix, without this process.

    Processes that may not be inspected are not found (those of another user, or that changed their user).

    Args:
        prefix: see ``mark``.
        outside: leave out members of this process group.
    """
    wanted = f"{VARIABLE}={prefix}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                # Empty for a zombie, which does not run any more.
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
    """Send a signal to a process group, which may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
