"""The release of this software that is installed; all components are one distribution."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "virtual-node"


def version() -> str:
    """The installed version; empty where we run from sources that are not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""
