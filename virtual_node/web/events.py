"""Selects the events that the page shows: warnings and routine events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from virtual_node.cluster.lower_cluster import LowerCluster

_MOST_WARNINGS = 20
_MOST_ROUTINE = 20
_LONGEST = 400


def shown_events(
    clusters: Mapping[str, LowerCluster], *, about: str = "", others: Iterable[dict[str, Any]] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Return the newest events of the upper cluster, the newest first.

    Args:
        clusters: the lower clusters that run now.
        about: ``namespace/name`` of the pod whose events are returned; empty: all events.
        others: events that other processes wrote; ``about`` does not filter them.

    Returns:
        ``warnings`` and ``routine``. A repeated event appears once, with its latest time.
    """
    newest: dict[tuple[str, str, str], dict[str, Any]] = {}
    written = [event for cluster in clusters.values() for event in cluster.recent_events()]
    for event in [*others, *(one for one in written if not about or one["object"] == f"Pod {about}")]:
        key = (event["object"], event["reason"], event["message"])
        known = newest.get(key)
        if known is None or str(known["time"]) <= str(event["time"]):
            newest[key] = {**event, "message": str(event["message"])[:_LONGEST]}
    events = sorted(newest.values(), key=lambda event: str(event["time"]), reverse=True)
    return {
        "warnings": [event for event in events if event["type"] == "Warning"][:_MOST_WARNINGS],
        "routine": [event for event in events if event["type"] != "Warning"][:_MOST_ROUTINE],
    }
