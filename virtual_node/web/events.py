"""Selects the events that the page shows: warnings and routine events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from clusterset.model.moving import movable
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object
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


Body = Mapping[str, Any]
ListEvents = Callable[[str, str], Awaitable[Sequence[Body]]]
"""Returns the Events of a namespace that match a field selector."""
_MOVED = "Rescheduled"
_AGE = 5.0
"""Seconds after which the Events of a pod are read again."""
_PODS = 16
"""Maximum number of pods whose Events are kept."""
_EVENTS = 100
"""Maximum number of Events that are kept per pod."""


@dataclass(slots=True)
class _Known:
    events: list[dict[str, Any]] = field(default_factory=list)
    begun: float = float("-inf")
    reading: asyncio.Task[None] | None = None


class PodEvents:
    """Reads Events in the background; never waits for the API server.

    Args:
        list_events: lists Events of the upper cluster.
    """

    def __init__(self, list_events: ListEvents) -> None:
        self._list = list_events
        self._known: dict[str, _Known] = {}
        self._log = structlog.get_logger(component="page")

    def of(self, pod: Object) -> list[dict[str, Any]]:
        """Return the known Events about a pod as rows, and read them again in the background if they are old."""
        now = asyncio.get_running_loop().time()
        known = self._known.pop(pod.uid, None) or _Known()
        self._known[pod.uid] = known
        while len(self._known) > _PODS:
            del self._known[next(iter(self._known))]
        if now - known.begun >= _AGE and (known.reading is None or known.reading.done()):
            known.begun = now
            known.reading = asyncio.create_task(self._read(pod, known), name="page events")
        return known.events

    async def _read(self, pod: Object, known: _Known) -> None:
        try:
            found = list(
                await self._list(pod.namespace, f"involvedObject.kind=Pod,involvedObject.name={pod.name}")
            )
            # The replacement of a bare pod keeps its name. Those of a controller have names with other suffixes.
            if owner := movable.controller(pod.to_dict()["metadata"]):
                moved = await self._list(pod.namespace, f"involvedObject.kind=Pod,reason={_MOVED}")
                others = (one for one in moved if _name(one) != pod.name)
                found += [one for one in others if _name(one).rpartition("-")[0] == owner.get("name")]
        except (ApiError, ConfigError) as error:
            self._log.debug("cannot read the events of a pod", pod=pod.key, error=str(error))
        else:
            rows = sorted((_row(one, pod) for one in found), key=lambda row: str(row["time"]), reverse=True)
            known.events = rows[:_EVENTS]


def events_of(client: Client) -> ListEvents:
    """Return a function that lists Events with a client of the upper cluster."""

    async def list_events(namespace: str, selector: str) -> list[Body]:
        found = await client.list(resources.EVENTS, namespace=namespace, field_selector=selector)
        return [one.to_dict() for one in found.items]

    return list_events


def _row(event: Body, pod: Object) -> dict[str, Any]:
    involved = event.get("involvedObject") or {}
    source = str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or "")
    time = event.get("lastTimestamp") or event.get("eventTime")
    return {
        "time": time or event["metadata"].get("creationTimestamp", ""),
        **{field: event.get(field, "") for field in ("type", "reason", "message")},
        "object": f"Pod {pod.namespace}/{_name(event)}",
        "cluster": source,
        "isCurrent": involved.get("uid") == pod.uid,
    }


def _name(event: Body) -> str:
    return str((event.get("involvedObject") or {}).get("name") or "")
