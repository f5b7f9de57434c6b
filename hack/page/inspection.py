"""A scheduled inspection for the page."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from controller_runtime.apimachinery import timestamps
from virtual_node.examine.inspections import Inspection, InspectionRun, RecordedFinding


def inspection() -> Inspection:
    """Return a scheduled inspection with a new and a fixed finding."""
    now = timestamps.rfc3339(datetime.now(UTC))
    leaked = RecordedFinding(
        state="new", since=now, severity="error", check="leaked", cluster="oregon", kind="Pod",
        object="shop/old", message="made for an upper pod which is gone",
    )  # fmt: skip
    fixed = msgspec.structs.replace(
        leaked,
        state="fixed",
        severity="warning",
        check="capacity",
        kind="Node",
        object="n-1",
        message="is cordoned",
    )
    run = InspectionRun(time=now, errors=1, warnings=0, new=1, fixed=1)
    return Inspection(findings=[fixed, leaked], runs=[run])
