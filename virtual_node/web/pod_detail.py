"""Describes an upper pod and its lower pod for the page, with placement and events. Does no IO.

Only the fields listed here are shown. Commands, arguments, values of environment variables, probes and
annotations can contain passwords, so they are left out. Users who may read them use kubectl, which checks
permissions.

Also selects the events that the page shows: warnings and routine events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from clusterset.model import names
from clusterset.model.moving import movable
from clusterset.model.overrides import recorded_changes
from clusterset.model.pod.conditions import condition
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.config import program
from virtual_node.web.reading import make_row

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


_CONTAINERS = (("initContainers", "init"), ("containers", ""), ("ephemeralContainers", "debug"))
"""Lists of containers, and the kind that the page shows."""
_SPEC = ("schedulerName", "priorityClassName", "serviceAccountName", "restartPolicy", "runtimeClassName")
"""Fields of a pod's spec that are texts."""
_VOLUME_NAMES = ("name", "secretName", "claimName", "path", "driver")
"""Fields of a volume's source that contain a name."""
_MOVES = frozenset({"Rescheduled", "NotRescheduled", "WouldReschedule", "RescheduleDelayed"})
"""Reasons of the descheduler's Events."""
_MOST_MOVES = 5
_PLACEMENT = {
    names.ANNOTATION_CLUSTER_SELECTOR: "selects lower nodes",
    names.ANNOTATION_SCHEDULER_NAME: "scheduler of the lower cluster",
    names.ANNOTATION_UNSCHEDULABLE_NODES: "virtual nodes that the descheduler avoids for it",
    names.ANNOTATION_UNSCHEDULABLE_NODE: "virtual nodes that were full for it",
    names.ANNOTATION_REPLACES: "re-created by the descheduler in place of the pod with uid",
}
"""Annotations that explain the placement of a pod, with their labels on the page."""


def pod_side(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page's data of an upper or a lower pod.

    Returns:
        namespace, name, node, created, deleting, phase, message, conditions, spec (name and value by field)
            and containers.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "node": spec.get("nodeName", ""),
        "created": metadata.get("creationTimestamp", ""),
        "deleting": metadata.get("deletionTimestamp", ""),
        "phase": status.get("phase", ""),
        "message": ": ".join(filter(None, (status.get("reason"), status.get("message")))),
        "conditions": [
            {
                "type": condition["type"],
                **{field: condition.get(field, "") for field in ("status", "reason", "message")},
                "since": condition.get("lastTransitionTime", ""),
            }
            for condition in status.get("conditions") or ()
        ],
        "spec": [{"name": name, "value": value} for name, value in _spec(spec).items() if value],
        "containers": [
            _container(kind, one, status) for field, kind in _CONTAINERS for one in spec.get(field) or ()
        ],
    }


def lower_side(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``pod_side`` of a lower pod; its ``spec`` also lists the fields that overrides of the cluster changed."""
    found = pod_side(pod)
    if changes := "; ".join(f"{name}: {field}" for name, field in recorded_changes(pod)):
        found["spec"].append({"name": "overrides", "value": changes})
    return found


def placement(pod: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return how the upper pod was placed, as rows of name and value: scheduler, annotations, PodScheduled."""
    spec, annotations = pod.get("spec") or {}, pod["metadata"].get("annotations") or {}
    found = [{"name": "scheduler", "value": str(spec.get("schedulerName") or "default-scheduler")}]
    found += [
        {"name": name, "value": str(annotations[key])[:600]}
        for key, name in _PLACEMENT.items()
        if annotations.get(key)
    ]
    scheduled = condition(pod.get("status"), "PodScheduled")
    if message := scheduled.get("message"):
        found.append({"name": str(scheduled.get("reason") or "not scheduled"), "value": str(message)})
    return found


def decisions(events: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return what other programs recorded about the placement, as rows of name and value.

    Args:
        events: events about the pod and about earlier pods of its owner, the newest first.

    Returns:
        The multi-scheduler's choice and a row per agent from the newest ``NodeScored`` about this pod, then
            the last moves by the descheduler.
    """
    events = list(events)
    message = next(
        (
            str(event["message"])
            for event in events
            if event["isCurrent"] and event["reason"] == names.EVENT_SCORED
        ),
        "",
    )
    bound, *agents = message.split(". Agent ") if message else ("",)
    found = [{"name": "multi-scheduler", "value": bound}] if bound else []
    for text in agents:
        agent, _, answer = text.partition(": ")
        found.append({"name": f"agent {agent}", "value": answer})
    moves = [event for event in events if event["reason"] in _MOVES]
    for move in moves[:_MOST_MOVES]:
        about = "" if move["isCurrent"] else f" (of {str(move['object']).removeprefix('Pod ')})"
        found.append({"name": f"{move['reason']} by the descheduler{about}", "value": str(move["message"])})
    return found


def _spec(spec: Mapping[str, Any]) -> dict[str, str]:
    selected = (f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items())
    return {
        **{field: str(spec.get(field) or "") for field in _SPEC},
        "nodeSelector": ", ".join(selected),
        "affinity": ", ".join(spec.get("affinity") or ()),
        "tolerations": ", ".join(sorted(set(map(_toleration, spec.get("tolerations") or ())))),
        "host": ", ".join(name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)),
        "imagePullSecrets": ", ".join(
            str(secret.get("name", "")) for secret in spec.get("imagePullSecrets") or ()
        ),
        "volumes": ", ".join(map(_volume, spec.get("volumes") or ())),
    }


def _toleration(one: Mapping[str, Any]) -> str:
    value = f"={one['value']}" if one.get("value") else ""
    return f"{one.get('key') or 'everything'}{value}" + (f":{one['effect']}" if one.get("effect") else "")


def _volume(volume: Mapping[str, Any]) -> str:
    kind = next((key for key in volume if key != "name"), "")
    source = volume.get(kind)
    named = (
        next((str(source[key]) for key in _VOLUME_NAMES if source.get(key)), "")
        if isinstance(source, dict)
        else ""
    )
    return f"{volume.get('name', '')} ({kind}{' ' if named else ''}{named})"


def _container(kind: str, container: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    found: Mapping[str, Any] = next(
        (
            one
            for field in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
            for one in status.get(field) or ()
            if one.get("name") == container["name"]
        ),
        {},
    )
    return {
        "kind": kind,
        "name": container["name"],
        "image": container.get("image", ""),
        "requests": _quantities(resources.get("requests")),
        "limits": _quantities(resources.get("limits")),
        "env": [str(one.get("name", "")) for one in container.get("env") or ()],
        "state": _state(found.get("state") or {}),
        "last": _state(found.get("lastState") or {}),
        "ready": bool(found.get("ready")),
        "restarts": int(found.get("restartCount") or 0),
    }


def _quantities(found: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (found or {}).items())


def _state(state: Mapping[str, Any]) -> str:
    if waiting := state.get("waiting"):
        return ": ".join(filter(None, (str(waiting.get("reason") or "waiting"), waiting.get("message"))))
    if ended := state.get("terminated"):
        text = f"{ended.get('reason') or 'ended'}, exit code {ended.get('exitCode')}"
        return f"{text}: {ended['message']}" if ended.get("message") else text
    return "running" if "running" in state else ""


def pod_view(
    clusters: Mapping[str, LowerCluster],
    waiting: Iterable[Object],
    name: str,
    *,
    in_full: bool,
    events: Callable[[Object], list[dict[str, Any]]],
) -> dict[str, Any]:
    """Return everything that the page shows of one pod.

    Args:
        clusters: the lower clusters that run now.
        waiting: upper pods without a node.
        name: ``namespace/name`` of the upper pod.
        in_full: whether the pod's spec, status and placement may be shown.
        events: see ``PodEvents.of``.
    """
    upper, lower, cluster = _find(clusters, waiting, name)
    if upper is None:
        return {"name": name, "missing": True}
    whole, below = upper.to_dict(), lower.to_dict() if lower is not None else None
    is_stale = (
        bool(cluster) and (health := clusters[cluster].health) is not None and health.reachable is False
    )
    known = events(upper)
    view: dict[str, Any] = {
        "name": name,
        "row": dict(make_row(whole, below, cluster, is_stale=is_stale).shown),
        "diagnose": program.name(f"diagnose pod {name}"),
        "events": shown_events(clusters, about=name, others=known),
    }
    if in_full:
        view["upper"] = pod_side(whole)
        view["lower"] = lower_side(below) if below is not None else None
        view["placement"] = [*placement(whole), *decisions(known)]
    return view


def _find(
    clusters: Mapping[str, LowerCluster], waiting: Iterable[Object], name: str
) -> tuple[Object | None, Object | None, str]:
    """Return the upper pod, its lower pod and its lower cluster's name; None or empty if unknown."""
    for cluster_name, cluster in clusters.items():
        if cluster.caches is not None:
            namespace, _, short = name.partition("/")
            pod = cluster.caches.upper_by_name(namespace, short)
            if pod is not None:
                return pod, cluster.caches.lower_of(pod), cluster_name
    return next((pod for pod in waiting if pod.key == name), None), None, ""
