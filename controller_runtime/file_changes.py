"""Notices that files have changed: configurations, kubeconfigs.

Secret and ConfigMap volumes swap symlinks, which no portable file watch reports; a stat every two seconds costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Stamp = tuple[float, int, int] | None
"""Time of modification, inode and size; None: the file is not there."""


class FileChanges:
    """Remembers what files looked like when they were read last."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """Remember the files as they are now: make it right after they were read.

        Args:
            files: name → path; an empty path is a file that never changes.
        """
        self._stamps = {(name, path): _stamp(path) for name, path in files.items()}

    def changed(self, files: Mapping[str, str]) -> list[str]:
        """Names of the files that differ from what was seen last; each once per change.

        A file that is away for a moment, as while a volume is being updated, has not changed; nor has one that is
        followed from now on, be it under a known name.

        Args:
            files: name → path, those to follow from now on.
        """
        changed = []
        known, self._stamps = self._stamps, {}
        for name, path in files.items():
            stamp = _stamp(path)
            before = known.get((name, path), stamp)
            if stamp is not None and before is not None and stamp != before:
                changed.append(name)
            self._stamps[name, path] = stamp or before
        return changed


def _stamp(path: str) -> Stamp:
    if not path:
        return None
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime, status.st_ino, status.st_size
