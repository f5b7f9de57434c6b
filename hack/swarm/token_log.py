"""A store that checks fencing tokens: one file per job, to which owners of the job append.

It stands for whatever jobs write to, such as a database row, an object with a generation or a topic with epochs.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_TAIL = 4096
"""Bytes at the file's end that contain the last line."""


class StaleTokenError(Exception):
    """A later owner has written, so this one has lost the job and must stop."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Consecutive lines of one owner."""

    job: str
    worker: str
    pid: int
    token: int
    begin: float
    """Seconds of the machine's monotonic clock, the same for all processes."""
    end: float
    stopped: bool
    """Whether the last line has event ``stop``."""

    @property
    def owner(self) -> tuple[str, int, int]:
        """Return worker, process and token."""
        return self.worker, self.pid, self.token


def append(folder: Path, job: str, *, token: int, worker: str, event: str) -> None:
    """Write a line, unless an owner with a higher token has written before.

    Args:
        folder: folder of the files.
        job: its name.
        token: fencing token.
        worker: the writer.
        event: ``start``, ``work`` or ``stop``.

    Raises:
        StaleTokenError: a higher token was used.
    """
    with _file(folder, job).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        highest = _last_token(file)
        if token < highest:
            raise StaleTokenError(f"job {job}: token {token} is stale, {highest} was used")
        line = {
            "at": time.monotonic(),
            "worker": worker,
            "pid": os.getpid(),
            "token": token,
            "event": event,
            "job": job,
        }
        file.write(json.dumps(line).encode() + b"\n")


def ownerships(folder: Path) -> dict[str, list[Ownership]]:
    """Return the ownerships of each job, in order; an owner that starts again or writes after another gets one more."""
    return {found[0].job: found for path in sorted(folder.glob("*.jsonl")) if (found := list(_blocks(path)))}


def overlaps(folder: Path) -> list[str]:
    """Return a line for each owner that wrote again after another, or without a higher token; empty: no overlaps."""
    problems = []
    for job, found in ownerships(folder).items():
        seen = {found[0].owner}
        for before, one in itertools.pairwise(found):
            again = one.owner != before.owner and one.owner in seen
            if again or (one.worker != before.worker and one.token <= before.token):
                problems.append(f"job {job}: {one.owner} wrote at {one.begin:.3f} after {before}")
            seen.add(one.owner)
    return problems


def gaps(folder: Path) -> dict[str, list[float]]:
    """Return, by job, the seconds between the last line of an ownership and the first line of the next one."""
    return {
        job: [after.begin - before.end for before, after in itertools.pairwise(found)]
        for job, found in ownerships(folder).items()
    }


def _blocks(path: Path) -> Iterator[Ownership]:
    block: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if block and (_owner(block[0]) != _owner(line) or line["event"] == "start"):
            yield _ownership(block)
            block = []
        block.append(line)
    if block:
        yield _ownership(block)


def _owner(line: dict[str, Any]) -> tuple[str, int, int]:
    return line["worker"], line["pid"], line["token"]


def _ownership(block: list[dict[str, Any]]) -> Ownership:
    return Ownership(
        block[0]["job"], *_owner(block[0]), block[0]["at"], block[-1]["at"], block[-1]["event"] == "stop"
    )


def _file(folder: Path, job: str) -> Path:
    return folder / f"{job.encode().hex()}.jsonl"


def _last_token(file: IO[bytes]) -> int:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - _TAIL, 0))
    lines = file.read().splitlines()
    return int(json.loads(lines[-1])["token"]) if lines else 0
