"""Builds the view of one pod: upper and lower pod, placement, events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controller_runtime.objects import Object
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.config import program
from virtual_node.web.events import shown_events
from virtual_node.web.pod_detail import decisions, lower_side, placement, pod_side
from virtual_node.web.reading import make_row


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
