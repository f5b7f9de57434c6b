"""The installed version of this software; all components are one distribution."""

from __future__ import annotations


def version() -> str:
    """Return the installed version; empty when run from sources that are not installed."""
    from importlib import metadata  # noqa: PLC0415 - few commands ask for the version

    try:
        return metadata.version("virtual-node")
    except metadata.PackageNotFoundError:
        return ""
