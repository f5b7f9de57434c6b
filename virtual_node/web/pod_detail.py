"""Describes an upper pod and its lower pod for the page, with placement and events. Does no IO.

Only the fields listed here are shown. Commands, arguments, values of environment variables, probes and
annotations can contain passwords, so they are left out. Users who may read them use kubectl, which checks
permissions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clusterset.model import names
from clusterset.model.overrides import recorded_changes
from clusterset.model.pod.conditions import condition
from controller_runtime.objects import Object
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.config import program
from virtual_node.web.events import shown_events
from virtual_node.web.reading import make_row

_CONTAINERS = (("initContainers", "init"), ("containers", ""), ("ephemeralContainers", "debug"))
"""Lists of containers, and the kind that the page shows."""
_SPEC = ("schedulerName", "priorityClassName", "serviceAccountName", "restartPolicy", "runtimeClassName")
"""Fields of a pod's spec that are texts."""
_VOLUME_NAMES = ("name", "secretName", "claimName", "path", "driver")
"""Fields of a volume's source that contain a name."""
SCORED = "NodeScored"
"""Reason of the multi-scheduler's Event with its agents' answers about the candidate nodes."""
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
        (str(event["message"]) for event in events if event["isCurrent"] and event["reason"] == SCORED), ""
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
