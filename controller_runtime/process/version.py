"""The installed version of this software; all components are one distribution."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "virtual-node"


def version() -> str:
    """Return the installed version; empty when run from sources that are not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""
