"""Judges Swarms by the conditions that their controller writes. Does no IO."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from clusterset.model.pod.conditions import condition, is_true
from controller_runtime.apimachinery import timestamps
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import rule
from virtual_node.examine.facts import SWARMS
from virtual_node.examine.finding import UPPER, Findings, finding
from virtual_node.examine.objects import Json, key, one_line
from virtual_node.examine.snapshot import Snapshot

_PATIENCE = 300.0
"""Seconds that workers may take to hand over jobs."""
_CONDITIONS = (
    ("Degraded", "True", Code.SWARM_DEGRADED, "degraded", 0.0),
    ("Assigned", "False", Code.SWARM_UNASSIGNED, "jobs without worker", 0.0),
    ("Converged", "False", Code.SWARM_NOT_CONVERGED, "handing over", _PATIENCE),
)
"""Type and status of a condition, its fault, the state to show, and the seconds that it may last; causes before
effects."""


@rule(Code.SWARM_DEGRADED, Code.SWARM_UNASSIGNED, Code.SWARM_NOT_CONVERGED, needs=[SWARMS])
def swarms(snapshot: Snapshot) -> Findings:
    """Yield the first condition of each Swarm that has lasted too long."""
    for swarm in snapshot.upper[SWARMS]:
        for name, status, code, _, patience in _CONDITIONS:
            found = condition(swarm.get("status"), name)
            if found.get("status") != status or _seconds_since(found, snapshot.now) < patience:
                continue
            metadata = swarm["metadata"]
            cause = one_line(found.get("message") or found.get("reason") or f"{name} is {status}")
            step = f"kubectl describe swarm {metadata['name']} -n {metadata['namespace']}"
            yield finding(code, UPPER, "Swarm", key(swarm), cause, step)
            break


def _seconds_since(found: Mapping[str, Any], now: datetime) -> float:
    """Return the age of a condition; infinite without a valid time, because users can write the status."""
    try:
        return max(0.0, (now - timestamps.parse(found["lastTransitionTime"])).total_seconds())
    except (KeyError, ValueError):
        return float("inf")


def swarm_state(swarm: Json) -> str:
    """Return the state of a Swarm for people: ``degraded``, ``handing over``, …; ``unknown``: no conditions yet."""
    states = (
        state
        for name, status, _, state, _ in _CONDITIONS
        if condition(swarm.get("status"), name).get("status") == status
    )
    return next(states, "converged" if is_true(swarm.get("status"), "Converged") else "unknown")
