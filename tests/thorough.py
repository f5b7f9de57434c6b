"""How many inputs and cases expensive tests try: few in `make unit`, all in `make test`, which sets ``THOROUGH``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

IS_THOROUGH = bool(os.environ.get("THOROUGH"))

only_thorough = pytest.mark.skipif(not IS_THOROUGH, reason="takes seconds: runs in `make test` only")
"""For a single slow input, of which no part could be left out."""


def seeds(few: int, many: int) -> range:
    """Return the seeds to try."""
    return range(many if IS_THOROUGH else few)


def size(small: int, large: int) -> int:
    """Return the size of a load, or its time, for tests of limits that are the same for a smaller one."""
    return large if IS_THOROUGH else small


def some(cases: Sequence[T], few: int) -> Sequence[T]:
    """Return all cases; in `make unit` at most ``few`` of them, evenly spread, for tests that start programs."""
    return cases if IS_THOROUGH else cases[:: -(-len(cases) // few)]
