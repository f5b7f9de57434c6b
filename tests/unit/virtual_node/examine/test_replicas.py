"""Why a replica is not Ready, from the events about its pod."""

from __future__ import annotations

import pytest

from virtual_node.examine.components import APPLIED, REJECTED, explanation

PROBE = ("Unhealthy", "Warning", "Readiness probe failed: HTTP 500")
FIELD = (REJECTED, "Warning", "clusters[0]: unknown field `lables`")
USED = (APPLIED, "Normal", "it is used")
MOUNT = ("FailedMount", "Warning", "secret lower1 not found")


@pytest.mark.parametrize(
    ("events", "explained"),
    [
        ([], ""),
        ([("Pulled", "Normal", "pulled")], ""),
        ([PROBE], PROBE[2]),
        ([FIELD, PROBE], FIELD[2]),
        ([FIELD, MOUNT, PROBE], MOUNT[2]),
        ([FIELD, USED, PROBE], PROBE[2]),
        ([FIELD, USED, FIELD, PROBE], FIELD[2]),
        ([MOUNT, FIELD, USED], MOUNT[2]),
    ],
)
def test_the_newest_cause_explains_a_replica(events: list[tuple[str, str, str]], explained: str):
    """A failing probe is an effect, and a configuration that is accepted by now is no cause."""
    found = [
        {"reason": reason, "type": kind, "message": message, "lastTimestamp": f"2026-01-01T00:00:0{second}Z"}
        for second, (reason, kind, message) in enumerate(events)
    ]
    assert explanation(reversed(found)) == explained
