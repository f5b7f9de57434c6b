"""Reads CHANGELOG.md (https://keepachangelog.com)."""

from __future__ import annotations

import re

from hack.image.commands import BuildError
from hack.image.python_packages import SOURCE

FILE = SOURCE / "CHANGELOG.md"


def notes(version: str) -> str:
    """Return the section of a version, without its heading.

    Raises:
        BuildError: the version has no section with a date.
    """
    text = FILE.read_text(encoding="utf-8")
    found = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |^\[|\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    if not found:
        raise BuildError(f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'")
    return found[1].strip()
