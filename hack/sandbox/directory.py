"""The sandbox's own folder: claimed by one command at a time, and only ever emptied when it is ours.

A folder is ours when it is empty, new, or carries our state file. Anything else (a home directory given by mistake)
is refused before a single file is touched, and nothing is removed while something is still mounted below.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.sandbox.errors import SandboxError

STATE = "sandbox.json"


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Make the folder if need be, and keep other commands out of it for as long as the context lasts.

    Raises:
        SandboxError: it is not ours to use, cannot be made, or another command is at work in it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SandboxError(f"--directory {directory}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SandboxError(f"another command is at work in {directory}; wait for it to end") from None
        require_ours(directory)
        yield
    finally:
        os.close(handle)


def require_ours(directory: Path) -> None:
    """Refuse a folder that holds what the sandbox did not make.

    Raises:
        SandboxError: it does.
    """
    if not (directory / STATE).exists() and any(directory.iterdir()):
        raise SandboxError(f"{directory} is not empty and not a sandbox's; choose another --directory")


def empty(directory: Path) -> None:
    """Remove what is in our folder, and leave the folder.

    Raises:
        SandboxError: it is not ours, or something is mounted in it.
    """
    require_ours(directory)
    mounted = mounts_below(directory)
    if mounted:
        raise SandboxError(f"{directory}: not removed, {mounted[0]} is still mounted")
    # The state file goes last: without it we would not know the rest for ours.
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name == STATE):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Remove our folder and all that is in it; one that is gone already is fine.

    Raises:
        SandboxError: it is not ours, or something is mounted in it.
    """
    if directory.is_dir():
        empty(directory)
        # A container that dies right now may have written a last file.
        shutil.rmtree(directory, ignore_errors=True)


def mounts_below(directory: Path, *, table: str | None = None) -> list[Path]:
    """Mount points in a folder, deepest first.

    Args:
        directory: the folder, absolute.
        table: what ``/proc/self/mounts`` says, for tests.
    """
    text = Path("/proc/self/mounts").read_text(encoding="utf-8") if table is None else table
    points = (Path(_unescape(line.split()[1])) for line in text.splitlines())
    found = [point for point in points if point != directory and point.is_relative_to(directory)]
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def _unescape(field: str) -> str:
    """The kernel writes blanks and the like as octal numbers."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(octal, character)
    return field
