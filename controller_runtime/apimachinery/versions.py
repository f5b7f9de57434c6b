"""Versions of Kubernetes."""

from __future__ import annotations

import re

_MINOR = re.compile(r"v?(\d+)\.(\d+)")


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor version of a text such as v1.37.2; None: it cannot be read."""
    found = _MINOR.match(version)
    return (int(found[1]), int(found[2])) if found else None
