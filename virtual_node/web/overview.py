"""Everything the page shows, gathered from the caches of the running lower clusters.

Rows are kept by uid and resourceVersion, so an overview of ten thousand pods costs what changed since the last.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from controller_runtime.api import pod_resources, quantity
from virtual_node.cluster import LowerCluster
from virtual_node.health.faults import Health
from virtual_node.web.rows import pod_row

SHOWN_PODS = 300
"""Rows sent to a browser; those in trouble come first. The counts are always of all."""
_SHARED_SECONDS = 0.5
"""Age up to which the caches are not read again: with ten thousand pods that takes 50 ms, in which nothing else happens."""
_RESOURCES = ("cpu", "memory", "pods")
_FINISHED = ("Succeeded", "Failed")


class Overview:
    """Builds the page's data."""

    def __init__(
        self,
        clusters: Mapping[str, LowerCluster],
        *,
        leader: Callable[[], str] = lambda: "",
        health: Callable[[], Health],
    ) -> None:
        """Set up.

        Args:
            clusters: the lower clusters that run now, by name; read anew for every snapshot.
            leader: host name of the replica that works while this one stands by; empty: this one works.
            health: the verdict of the health model, which is the page's headline.
        """
        self._leader = leader
        self._health = health
        self._clusters = clusters
        self._gathered: tuple[float, list[dict[str, Any]], list[tuple[str, dict[str, Any]]]] | None = None
        self._rows: dict[str, tuple[tuple[str, str], dict[str, Any], dict[str, int]]] = {}

    def snapshot(self, *, search: str = "") -> dict[str, Any]:
        """Return the state of everything, at most half a second old: searches share the reading of the caches.

        Args:
            search: only pods whose namespace, name, node or status contains it.
        """
        now = asyncio.get_running_loop().time()
        if self._gathered is None or now - self._gathered[0] > _SHARED_SECONDS:
            self._gathered = now, *self._gather()
        _, clusters, found = self._gathered
        wanted = search.strip().lower()
        rows = [row for text, row in found if wanted in text] if wanted else [row for _, row in found]
        events = [event for cluster in self._clusters.values() for event in cluster.recent_events()]
        events.sort(key=lambda event: str(event["time"]), reverse=True)
        return {
            "leader": self._leader(),
            "health": self._health().data(),
            "clusters": clusters,
            "pods": rows[:SHOWN_PODS],
            "podsFound": len(rows),
            "events": events[:50],
        }

    def _gather(self) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
        """Read the caches: the clusters, and the pods with the text that a search looks into, those in trouble first."""
        rows: list[dict[str, Any]] = []
        seen: dict[str, tuple[tuple[str, str], dict[str, Any], dict[str, int]]] = {}
        clusters = [
            self._cluster(name, cluster, rows, seen) for name, cluster in sorted(self._clusters.items())
        ]
        self._rows = seen
        rows.sort(key=lambda row: (not row["trouble"], row["namespace"], row["name"]))
        return clusters, [(" ".join(map(str, row.values())).lower(), row) for row in rows]

    def _cluster(
        self,
        name: str,
        cluster: LowerCluster,
        rows: list[dict[str, Any]],
        seen: dict[str, tuple[tuple[str, str], dict[str, Any], dict[str, int]]],
    ) -> dict[str, Any]:
        used: dict[str, Counter[str]] = {}
        phases: dict[str, Counter[str]] = {}
        caches = cluster.caches
        for node, informer in caches.upper.items() if caches is not None else ():
            used[node], phases[node] = Counter(), Counter()
            for pod in informer.store.list():
                assert caches is not None
                lower = caches.lower_pod(pod.uid)
                version = (pod.resource_version, lower.resource_version if lower is not None else "")
                known = self._rows.get(pod.uid)
                if known is None or known[0] != version:
                    whole = pod.to_dict()
                    finished = (whole.get("status") or {}).get("phase") in _FINISHED
                    requests = {} if finished else {**pod_resources.pod_requests(whole["spec"]), "pods": 1}
                    row = pod_row(whole, lower.to_dict() if lower is not None else None)
                    known = (version, {**row, "cluster": name}, requests)
                seen[pod.uid] = known
                rows.append(known[1])
                used[node].update(known[2])
                phases[node]["trouble" if known[1]["trouble"] else "well"] += 1
        health = cluster.health
        return {
            "name": name,
            "reachable": health.reachable if health is not None else None,
            "error": health.error if health is not None else "starting",
            "version": health.version if health is not None else "",
            "nodes": [
                {
                    "name": node,
                    "ready": controller.ready,
                    "lowerNodes": {
                        "ready": controller.capacity.ready_nodes,
                        "all": controller.capacity.selected_nodes,
                    },
                    "pods": dict(phases.get(node, {})),
                    "resources": _resources(controller.capacity.totals()[1], used.get(node, Counter())),
                }
                for node, controller in sorted(cluster.nodes.items())
            ],
        }


def _resources(allocatable: Mapping[str, str], used: Mapping[str, int]) -> list[dict[str, Any]]:
    shown = [*_RESOURCES, *(name for name in sorted(allocatable) if "/" in name)]
    found = []
    for name in shown:
        total = quantity.of(name, allocatable.get(name, "0"))
        found.append(
            {
                "name": name,
                "used": quantity.render(name, used.get(name, 0)),
                "total": allocatable.get(name, "0"),
                "share": round(used.get(name, 0) / total, 4) if total else None,
            }
        )
    return found
