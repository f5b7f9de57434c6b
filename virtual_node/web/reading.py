"""Reads all pods from the caches in slices, so that 10,000 pods do not block the event loop.

A row is rebuilt only when its upper pod, its lower pod or the state of its lower cluster has changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterset.model.moving import movable
from clusterset.model.moving.drain import TEMPLATE_HASH
from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import is_finished
from controller_runtime.objects import Object
from controller_runtime.util.event_loop import Slicer
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.examine.objects import is_for_virtual_nodes
from virtual_node.translate.pods.summary import pod_row
from virtual_node.web.groups import STALE, UNPLACED, Row, state_of


@dataclass(slots=True)
class Reading:
    """All pods at one moment.

    Attributes:
        rows: rows of the pods.
        nodes: number of pods by state, for each virtual node.
        used: requests of the pods, for each virtual node.
        below: requests of the mirrored pods, for each lower cluster and lower node.
        namespaces: all upper namespaces of the pods.
    """

    rows: list[Row] = field(default_factory=list)
    nodes: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    used: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    below: defaultdict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    namespaces: set[str] = field(default_factory=set)


class Reader:
    """Reads the upper pods of virtual nodes.

    Args:
        clusters: the lower clusters that run now, by name.
        waiting: returns the upper pods without a node; only those for virtual nodes are kept.
    """

    def __init__(
        self, clusters: Mapping[str, LowerCluster], *, waiting: Callable[[], Iterable[Object]]
    ) -> None:
        self._clusters = clusters
        self._waiting = waiting
        self._known: dict[str, tuple[tuple[Any, ...], Row]] = {}
        self._meant: dict[str, tuple[str, bool]] = {}
        """For pods without a node: resourceVersion, and whether the pod is for virtual nodes, by UID."""

    def forget(self) -> None:
        """Drop all cached rows; the next read rebuilds them."""
        self._known, self._meant = {}, {}

    async def read(self) -> Reading:
        """Return the pods on virtual nodes, and the pods without a node that are for virtual nodes."""
        reading, slicer = Reading(), Slicer()
        seen: dict[str, tuple[tuple[Any, ...], Row]] = {}
        desired: dict[str, tuple[str, bool]] = {}
        for name, cluster in list(self._clusters.items()):
            caches = cluster.caches
            is_stale = cluster.health is not None and cluster.health.reachable is False
            for node, informer in list(caches.upper.items()) if caches is not None else ():
                states, used = reading.nodes[node], reading.used[node]
                for pod in informer.store.list():
                    await slicer.tick()
                    assert caches is not None
                    lower = caches.lower_of(pod)
                    row = self._row(seen, pod, lower, cluster=name, is_stale=is_stale)
                    reading.rows.append(row)
                    states[row.state] += 1
                    used.update(row.requests)
                    if where := str(row.shown["lowerNode"]):
                        reading.below[name, where].update(row.requests)
                    reading.namespaces.add(pod.namespace)
        for pod in self._waiting():
            await slicer.tick()
            if self._is_ours(desired, pod):
                reading.rows.append(self._row(seen, pod, None, cluster="", is_stale=False))
                reading.namespaces.add(pod.namespace)
        self._meant = desired
        self._known = seen
        return reading

    def _is_ours(self, desired: dict[str, tuple[str, bool]], pod: Object) -> bool:
        """Report whether a pod without a node is for virtual nodes, and store the result in ``desired``."""
        known = self._meant.get(pod.uid)
        if known is None or known[0] != pod.resource_version:
            nodes = [node for cluster in self._clusters.values() for node in cluster.nodes]
            known = pod.resource_version, is_for_virtual_nodes(pod.to_dict(), nodes)
        desired[pod.uid] = known
        return known[1]

    def _row(
        self,
        seen: dict[str, tuple[tuple[Any, ...], Row]],
        pod: Object,
        lower: Object | None,
        *,
        cluster: str,
        is_stale: bool,
    ) -> Row:
        lower_version = lower.resource_version if lower is not None else ""
        version = (pod.resource_version, lower_version, cluster, is_stale)
        known = self._known.get(pod.uid)
        if known is None or known[0] != version:
            below = lower.to_dict() if lower is not None else None
            known = version, make_row(pod.to_dict(), below, cluster, is_stale=is_stale)
        seen[pod.uid] = known
        return known[1]


def make_row(
    upper: Mapping[str, Any], lower: Mapping[str, Any] | None, cluster: str, *, is_stale: bool = False
) -> Row:
    """Return a pod's row.

    Args:
        upper: the upper pod.
        lower: the pod in the lower cluster; None: there is none.
        cluster: name of the lower cluster; empty: the pod has no virtual node yet.
        is_stale: whether the lower cluster does not answer.
    """
    shown = pod_row(upper, lower)
    uid = str(upper["metadata"].get("uid") or "")
    phase = str((upper.get("status") or {}).get("phase") or "")
    state, has_finished = state_of(shown, phase), is_finished(upper.get("status"))
    if not has_finished:  # a final status cannot become stale
        state = UNPLACED if not cluster else STALE if is_stale else state
    shown |= {"uid": uid, "cluster": cluster, "state": state}
    owner = owner_of(upper["metadata"])
    searched = ("namespace", "name", "node", "lowerNamespace", "lowerNode", "status", "why", "cluster")
    return Row(
        uid=uid,
        shown=shown,
        text=" ".join([*(str(shown[name]) for name in searched), *owner]).lower(),
        owner=owner,
        requests={} if has_finished else {**pod_resources.pod_requests(upper["spec"]), "pods": 1},
    )


def owner_of(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of the workload that a pod belongs to.

    Args:
        metadata: metadata of the pod.

    Returns:
        The pod's controller; the Deployment if the controller is a Deployment's ReplicaSet; without a
            controller "Pod" and the pod's name.
    """
    owner = movable.controller(metadata)
    if owner is None:
        return "Pod", str(metadata["name"])
    kind, name = str(owner.get("kind") or ""), str(owner.get("name") or "")
    template = (metadata.get("labels") or {}).get(TEMPLATE_HASH)
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return "Deployment", name.removesuffix(f"-{template}")
    return kind, name
