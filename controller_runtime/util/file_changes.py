"""Notices that files have changed: configurations, kubeconfigs.

Secret and ConfigMap volumes swap symlinks, which no portable file watch reports; a stat every two seconds costs nothing.
They write all of their files anew when one has changed, so the content decides.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class _Look(NamedTuple):
    """What a file looked like."""

    stamp: tuple[float, int, int]
    """Time of modification, inode and size."""
    digest: bytes


class FileChanges:
    """Remembers what files looked like when they were read last."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """Remember the files as they are now: make it right after they were read.

        Args:
            files: name → path; an empty path is a file that never changes.
        """
        self._seen = {(name, path): _look(path, None) for name, path in files.items()}

    def changed(self, files: Mapping[str, str]) -> list[str]:
        """Names of the files that differ from what was seen last; each once per change.

        A file that is away for a moment, as while a volume is being updated, has not changed; nor has one that is
        followed from now on, be it under a known name.

        Args:
            files: name → path, those to follow from now on.
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
    """The file as it is now, read only where it may differ from before; None: it is not there, or none (a pipe)."""
    if not path:
        return None
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            return None
        stamp = (status.st_mtime, status.st_ino, status.st_size)
        if before is not None and stamp == before.stamp:
            return before
        # Read after the stamp was taken: a change in between is found by the next look.
        return _Look(stamp, hashlib.sha256(Path(path).read_bytes()).digest())
    except (OSError, ValueError):  # the latter: a path that cannot be one
        return None
