"""Bound pods whose room is not counted yet, by lower cluster.

Any tenant can bind pods to node names that do not exist. So the pods of one cluster are found without reading the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controller_runtime.objects import Object
from multi_scheduler.virtual_node import VirtualNode

_AT_ONCE = 100
"""Number of unknown node names that one call looks up again."""


@dataclass(eq=False)
class Uncounted:
    """Pods in phase Pending with neither a reservation nor a lower pod on a lower node."""

    find_node: Callable[[str], VirtualNode | None]
    """Returns a virtual node by its name; None: not known yet, or not a virtual node."""
    _pods: dict[str, dict[str, Object]] = field(default_factory=dict)
    """By node name and UID."""
    _node_of: dict[str, str] = field(default_factory=dict)
    """By UID of a pod."""
    _names: dict[str, dict[str, None]] = field(default_factory=dict)
    """By lower cluster: its node names in ``_pods``. The empty cluster has the names that are unknown."""

    def add(self, pod: Object, node: str) -> None:
        """Add a pod that is bound to a node."""
        self.remove(pod.uid)
        if node not in self._pods:
            self._pods[node] = {}
            self._file(node)
        self._pods[node][pod.uid] = pod
        self._node_of[pod.uid] = node

    def remove(self, uid: str) -> None:
        """Remove a pod, if it is there."""
        node = self._node_of.pop(uid, None)
        if node is None:
            return
        pods = self._pods[node]
        del pods[uid]
        if not pods:
            del self._pods[node]
            for names in self._names.values():
                names.pop(node, None)

    def offered(self, node: VirtualNode) -> None:
        """Note that a name is known to be a virtual node."""
        if node.name in self._names.get("", ()):
            self._file(node.name)

    def of(self, cluster: str) -> Iterator[tuple[Object, VirtualNode]]:
        """Yield the pods of a cluster, each with its node. Pods may be removed meanwhile."""
        unknown = self._names.get("", {})
        for name in [name for name, _ in zip(unknown, range(_AT_ONCE), strict=False)]:
            del unknown[name]
            self._file(name)  # if it is still unknown, it is the last to be looked up
        for name in list(self._names.get(cluster, ())):
            if name not in self._pods:
                continue
            node = self.find_node(name)
            if node is None or node.cluster != cluster:
                del self._names[cluster][name]
                self._file(name)
                continue
            yield from ((pod, node) for pod in list(self._pods[name].values()))

    def _file(self, name: str) -> None:
        node = self.find_node(name)
        cluster = node.cluster if node is not None else ""
        self._names.get("", {}).pop(name, None)
        self._names.setdefault(cluster, {})[name] = None
