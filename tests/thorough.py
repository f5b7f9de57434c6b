"""How many inputs randomized tests try: few in `make unit`, many in `make test`, which sets ``THOROUGH``."""

from __future__ import annotations

import os

IS_THOROUGH = bool(os.environ.get("THOROUGH"))


def seeds(few: int, many: int) -> range:
    """Return the seeds to try."""
    return range(many if IS_THOROUGH else few)
