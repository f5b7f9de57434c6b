"""The sandbox's folder: claimed by one command at a time, and only emptied when the sandbox made it.

A folder belongs to the sandbox when it is empty, new, or contains the sandbox's state file. Anything else (a
home directory given by mistake) is refused before a file is touched, and nothing is removed while something
is mounted in it.
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
    """Make the folder if necessary, and lock out other commands while the context lasts.

    Raises:
        SandboxError: it is not a sandbox's, cannot be made, or another command uses it.
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
            raise SandboxError(f"another command uses {directory}; wait for it to end") from None
        require_sandbox_folder(directory)
        yield
    finally:
        os.close(handle)


def require_sandbox_folder(directory: Path) -> None:
    """Refuse a folder with files that the sandbox did not make.

    Raises:
        SandboxError: it has such files.
    """
    if not (directory / STATE).exists() and any(directory.iterdir()):
        raise SandboxError(f"{directory} is not empty and not a sandbox's; choose another --directory")


def empty(directory: Path) -> None:
    """Remove the content of a sandbox's folder, and keep the folder.

    Raises:
        SandboxError: it is not a sandbox's, or something is mounted in it.
    """
    require_sandbox_folder(directory)
    mounted = mounts_in(directory)
    if mounted:
        raise SandboxError(f"{directory}: not removed, {mounted[0]} is still mounted")
    # The state file is removed last, because it identifies the remaining files as the sandbox's.
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name == STATE):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Remove a sandbox's folder and its content; a missing folder is no error.

    Raises:
        SandboxError: it is not a sandbox's, or something is mounted in it.
    """
    if directory.is_dir():
        empty(directory)
        # A container that is ending may have written another file.
        shutil.rmtree(directory, ignore_errors=True)


def mounts_in(directory: Path, *, table: str | None = None) -> list[Path]:
    """Return mount points in a folder, deepest first.

    Args:
        directory: the folder, absolute.
        table: content of ``/proc/self/mounts``, for tests.
    """
    text = Path("/proc/self/mounts").read_text(encoding="utf-8") if table is None else table
    points = (Path(_unescape(line.split()[1])) for line in text.splitlines())
    found = [point for point in points if point != directory and point.is_relative_to(directory)]
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def _unescape(field: str) -> str:
    """Decode the octal numbers that the kernel writes for blanks and similar characters."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(octal, character)
    return field
