"""The page's table of the last scheduled inspection."""

from __future__ import annotations

from typing import Any

import msgspec

from virtual_node.health.inspections import FIXED, NEW, PERSISTING, UNKNOWN, Inspection

_ORDER = (NEW, PERSISTING, UNKNOWN, FIXED)
_MOST = 50
"""Maximum number of findings that are sent."""


def inspection_table(inspection: Inspection) -> dict[str, Any]:
    """Return the last run's counts, its first findings (errors, then new ones, lead) and their total number."""
    found = sorted(inspection.findings, key=lambda one: (one.severity, _ORDER.index(one.state), one.identity))
    return {
        "run": msgspec.to_builtins(inspection.runs[-1]) if inspection.runs else None,
        "rows": msgspec.to_builtins(found[:_MOST]),
        "all": len(found),
    }
