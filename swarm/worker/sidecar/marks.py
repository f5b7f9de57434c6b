"""The processes of a job, found by a mark in their environment, which children inherit.

A process group is not enough: a grandchild can leave it, and a restarted sidecar does not know the groups that a killed one
left behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from pathlib import Path

VARIABLE = "VIRTUAL_NODE_SWARM_PROCESS"


def mark(worker: str, job: str = "") -> str:
    """The mark of a worker's processes of one job, or the common prefix of all its marks."""
    prefix = hashlib.sha256(worker.encode()).hexdigest()[:16] + "-"
    return prefix + hashlib.sha256(job.encode()).hexdigest()[:32] if job else prefix


def marked(prefix: str, *, outside: int | None = None) -> list[int]:
    """Ids of the living processes whose mark begins with the prefix, without this process.

    A process that may not be inspected (another user's, or one that changed its user) is not found.

    Args:
        prefix: see ``mark``.
        outside: leave out the members of this process group.
    """
    wanted = f"{VARIABLE}={prefix}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                # Empty for a zombie, which is dead.
                environment = Path(entry.path, "environ").read_bytes()
                process = int(entry.name)
                if any(one.startswith(wanted) for one in environment.split(b"\0")) and (
                    outside is None or os.getpgid(process) != outside
                ):
                    found.append(process)
    return found


def send(number: signal.Signals, processes: list[int]) -> None:
    """Send a signal to each process that still exists."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def group_exists(leader: int) -> bool:
    """Whether a process group has members, zombies included."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def send_group(number: signal.Signals, leader: int) -> None:
    """Send a signal to a process group that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
