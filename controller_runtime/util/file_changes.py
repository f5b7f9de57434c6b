"""Detects changed files, such as configurations and kubeconfigs.

Secret and ConfigMap volumes swap symlinks, which no portable file watch reports; a stat every two seconds is
cheap. A volume rewrites all of its files when one has changed, so the content is compared, too.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class _Look(NamedTuple):
    stamp: tuple[float, int, int]
    """Modification time, inode and size."""
    digest: bytes


class FileChanges:
    """Remembers the state of files when they were last read."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """Record the current state of the files; call it right after they were read.

        Args:
            files: name → path; an empty path is a file that never changes.
        """
        self._seen = {(name, path): _look(path, None) for name, path in files.items()}

    def changed(self, files: Mapping[str, str]) -> list[str]:
        """Return the names of files whose content changed since the last call; each change once.

        A file that is temporarily missing, as during a volume update, has not changed. A new name or path has
        not changed either.

        Args:
            files: name → path, the files to follow from now on.
        """
        changed = []
        known, self._seen = self._seen, {}
        for name, path in files.items():
            before = known.get((name, path))
            look = _look(path, before)
            if look is not None and before is not None and look.digest != before.digest:
                changed.append(name)
            self._seen[name, path] = look or before
        return changed


def _look(path: str, before: _Look | None) -> _Look | None:
    """Return the file's state, reading it only if its stamp changed; None: missing, or not a regular file."""
    if not path:
        return None
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            return None
        stamp = (status.st_mtime, status.st_ino, status.st_size)
        if before is not None and stamp == before.stamp:
            return before
        # Read after the stamp was taken, so that the next check finds a change made during the reading.
        return _Look(stamp, hashlib.sha256(Path(path).read_bytes()).digest())
    except (OSError, ValueError):  # ValueError: not a valid path
        return None
