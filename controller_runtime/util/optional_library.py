"""Imports of a library without another library that it would use if it is installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def unavailable(library: str) -> Iterator[None]:
    """Make imports of a library fail during the block, unless it is imported already."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # Python then raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules[library]
