"""Judges Swarms by the conditions that their controller writes. Does no IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from clusterset.model.pod.conditions import condition, is_true
from controller_runtime.apimachinery import timestamps
from virtual_node.health.faults import Fault, Kind
from virtual_node.health.objects import Json, key, one_line

_PATIENCE = 300.0
"""Seconds that workers may take to hand over jobs."""
_CONDITIONS = (
    ("Degraded", "True", Kind.SWARM_DEGRADED, "degraded", 0.0),
    ("Assigned", "False", Kind.SWARM_UNASSIGNED, "jobs without worker", 0.0),
    ("Converged", "False", Kind.SWARM_NOT_CONVERGED, "handing over", _PATIENCE),
)
"""Type and status of a condition, its fault, the state to show, and the seconds that it may last; causes before
effects."""


def swarm_faults(swarms: Iterable[Json], now: datetime) -> Iterator[Fault]:
    """Yield the first fault of each Swarm.

    Args:
        swarms: the Swarms.
        now: current time by the API server's clock.
    """
    for swarm in swarms:
        for name, status, kind, _, patience in _CONDITIONS:
            found = condition(swarm.get("status"), name)
            if found.get("status") != status or _seconds_since(found, now) < patience:
                continue
            metadata = swarm["metadata"]
            cause = one_line(found.get("message") or found.get("reason") or f"{name} is {status}")
            step = f"kubectl describe swarm {metadata['name']} -n {metadata['namespace']}"
            yield Fault(kind, (f"Swarm {key(swarm)}",), cause, step)
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
