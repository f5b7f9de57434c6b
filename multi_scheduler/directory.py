"""Maps upper nodes to lower clusters, from the configuration and the labels of the Nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from multi_scheduler.agent import VirtualNode
from multi_scheduler.config import Config


class NodeDirectory:
    """Finds the virtual nodes among the scheduler's candidates."""

    def __init__(self, client: Client, config: Config) -> None:
        self._clusters = {cluster.name for cluster in config.clusters}
        self._configured = {
            node.name: (cluster.name, node.node_selector)
            for cluster in config.clusters
            for node in cluster.nodes
        }
        self.nodes = Informer(
            client,
            resources.NODES,
            label_selector=f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}",
            transform=_shrink,
        )

    def node(self, name: str) -> dict[str, Any] | None:
        """Return a virtual node's Node object, reduced to metadata and allocatable resources; None: unknown."""
        cached = self.nodes.store.get(name)
        return cached.to_dict() if cached is not None else None

    def unready(self) -> str | None:
        """Return why virtual nodes cannot be found yet; None if they can."""
        return None if self.nodes.has_synced else "the upper cluster's nodes have not been read yet"

    async def wait(self, seconds: float) -> bool:
        """Wait for the list of virtual nodes, because until then they look like real nodes; return False after the timeout."""
        return await self.nodes.wait_synced(seconds)

    def of(self, cluster: str) -> list[VirtualNode]:
        """Return the virtual nodes of a lower cluster."""
        found = (self.find(node.name, None) for node in self.nodes.store.list())
        return [node for node in found if node is not None and node.cluster == cluster]

    def find(self, name: str, node: Mapping[str, Any] | None) -> VirtualNode | None:
        """Return the virtual node with this name; None if it is a real node, or its lower cluster is not configured.

        Args:
            name: name of the upper node.
            node: the Node object if the scheduler sent it; None: its labels are read from the cache.
        """
        cached = self.nodes.store.get(name)
        labels: Mapping[str, str] = {}
        annotations: Mapping[str, str] = {}
        if node is not None:
            labels = node["metadata"].get("labels") or {}
            annotations = node["metadata"].get("annotations") or {}
        elif cached is not None:
            labels, annotations = cached.labels, cached.annotations
        if name in self._configured:
            cluster, pool = self._configured[name]
            return VirtualNode(name, cluster, labels, pool, annotations)
        if labels.get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL:
            return None
        for label in (names.LABEL_LOWER_CLUSTER, names.LABEL_CLUSTER_ID):
            if (cluster := labels.get(label, name)) in self._clusters:
                return VirtualNode(name, cluster, labels, {}, annotations)
        return None


def _shrink(node: Object) -> Object:
    allocatable = (node.status or {}).get("allocatable")
    return node.with_fields(spec={}, status={"allocatable": allocatable} if allocatable else {})
