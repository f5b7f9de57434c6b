"""Maps upper nodes to lower clusters, from the configuration and the labels of the Nodes.

An upper node is a virtual node of a configured lower cluster, a real node, or an *unknown* virtual node: it has the label of
virtual nodes and belongs to no configured cluster. Nothing about its lower cluster can be predicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from prometheus_client import Gauge

from clusterset.config import Cluster
from clusterset.model import names
from controller_runtime import log, resources
from controller_runtime.apimachinery.readable import some
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from multi_scheduler.config import Config
from multi_scheduler.virtual_node import VirtualNode

_UNKNOWN = Gauge(
    "virtual_node_extender_unknown_nodes",
    "Virtual nodes that belong to no lower cluster of the multi-scheduler's configuration.",
)
_LOOK = 60.0
"""Seconds between two searches for lower clusters without a virtual node. Two in a row are reported, because a virtual node
may be registered after this process has started."""


class NodeDirectory:
    """Finds the virtual nodes among the scheduler's candidates."""

    def __init__(self, client: Client, config: Config, *, effect: str = "") -> None:
        """Create the informer, without lower clusters; ``run`` starts it.

        Args:
            client: the upper cluster.
            config: what happens to unknown virtual nodes.
            effect: what unknown virtual nodes lack, for the log; empty: what ``unknownNodes`` says.
        """
        self._clusters: dict[str, Cluster] = {}
        self._configured: dict[str, tuple[str, Mapping[str, str]]] = {}
        """Lower cluster and selector of its lower nodes, by name of a virtual node that the configuration names."""
        self._rejects_unknown = config.unknown_nodes == "Reject"
        self._effect = effect or (
            "no pod gets it" if self._rejects_unknown else "pods get it without any check"
        )
        self._has_profiles = config.cluster_profiles is not None
        self._unknown: set[str] = set()
        """Names of the unknown virtual nodes."""
        self._log = log.get_logger(component="extender")
        self.nodes = Informer(
            client,
            resources.NODES,
            label_selector=f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}",
            transform=_shrink,
        )
        self.nodes.on_change(self._changed, self._gone)
        _UNKNOWN.set(0)

    def add(self, cluster: Cluster, _client: Client) -> None:
        """Find the virtual nodes of a lower cluster, too."""
        self._clusters[cluster.name] = cluster
        if cluster.nodes or cluster.node_name:
            for node in cluster.virtual_nodes():
                self._configured[node.name] = cluster.name, node.node_selector
        self._compare()

    async def remove(self, cluster: str) -> None:
        """Find the virtual nodes of a lower cluster no longer."""
        del self._clusters[cluster]
        self._configured = {name: one for name, one in self._configured.items() if one[0] != cluster}
        self._compare()

    def _compare(self) -> None:
        """Find out which virtual nodes are unknown now."""
        for node in self.nodes.store.list():
            self._changed(node)

    async def run(self) -> None:
        """Follow the virtual nodes, and log lower clusters that have none, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(self._report_absent())

    def node(self, name: str) -> dict[str, Any] | None:
        """Return a virtual node's Node object, reduced to metadata and allocatable resources; None: there is none."""
        cached = self.nodes.store.get(name)
        return cached.to_dict() if cached is not None else None

    def unread(self) -> str | None:
        """Return why virtual nodes cannot be found yet; None if they can."""
        return None if self.nodes.has_synced else "the upper cluster's nodes have not been read yet"

    def unready(self) -> str | None:
        """Return why virtual nodes cannot be found yet, or why all of them are rejected; None: pods can get virtual nodes.

        One known virtual node is enough. No virtual node at all is fine, too, because none may be registered yet.
        """
        if (why := self.unread()) is not None:
            return why
        if self._rejects_unknown and self._unknown and len(self._unknown) == len(self.nodes.store):
            return (
                f"all virtual nodes ({some(sorted(self._unknown))}) belong to no configured lower cluster; "
                f"configured: {some(sorted(self._clusters))}"
            )
        return None

    async def wait(self, seconds: float) -> bool:
        """Wait for the list of virtual nodes, because until then they look like real nodes; return False after the timeout."""
        return await self.nodes.wait_synced(seconds)

    def of(self, cluster: str) -> list[VirtualNode]:
        """Return the virtual nodes of a lower cluster."""
        found = (self.find(node.name, None) for node in self.nodes.store.list())
        return [node for node in found if node is not None and node.cluster == cluster]

    def find(self, name: str, node: Mapping[str, Any] | None) -> VirtualNode | None:
        """Return the virtual node with this name; None if it is a real node, or an unknown virtual node.

        Args:
            name: name of the upper node.
            node: the Node object if the scheduler sent it; None: its labels are read from the cache.
        """
        labels, annotations, status = self._read(name, node)
        allocatable = (status or {}).get("allocatable") or {}
        if name in self._configured:
            cluster_name, pool = self._configured[name]
            return VirtualNode(name, cluster_name, labels, pool, annotations, allocatable)
        found = self._labelled_cluster(name, labels)
        if not found:
            return None
        # Only its labels assign it to the cluster.
        pool = {} if (cluster := self._clusters[found]).nodes else cluster.node_selector
        return VirtualNode(name, found, labels, pool, annotations, allocatable)

    def refusal(self, name: str, node: Mapping[str, Any] | None) -> str:
        """Return why no pod may get a node, which is an unknown virtual node; empty: it is none, or ``unknownNodes`` is Pass.

        Args:
            name: name of the upper node.
            node: as for ``find``.
        """
        if not self._rejects_unknown:
            return ""
        labels, _, _ = self._read(name, node)
        if not self._is_unknown(name, labels):
            return ""
        cluster = labels.get(names.LABEL_LOWER_CLUSTER)
        key = names.LABEL_LOWER_CLUSTER
        label = f"label {key}: {cluster}" if cluster else f"no label {key}"
        absent = self._absent()
        alone = f" (its clusters without a virtual node: {some(sorted(absent))})" if absent else ""
        return (
            f"virtual node {name} ({label}) belongs to no lower cluster of the multi-scheduler's configuration{alone}: "
            f"{self._next_step(name)}, or set unknownNodes: Pass"
        )

    def _absent(self) -> set[str]:
        """Return the configured lower clusters without a virtual node."""
        found = (self.find(node.name, None) for node in self.nodes.store.list())
        return self._clusters.keys() - {node.cluster for node in found if node is not None}

    def _next_step(self, name: str) -> str:
        """Return for administrators how an unknown virtual node becomes known."""
        step = (
            f"write `nodes: [{{name: {name}}}]` into the entry of its cluster in clusters (with the chart: add the cluster to "
            "virtualNode.clusters)"
        )
        return (
            f"{step}, or find in the log why its ClusterProfile is not used" if self._has_profiles else step
        )

    def _read(
        self, name: str, node: Mapping[str, Any] | None
    ) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, Any] | None]:
        """Return a node's labels, annotations and status; empty for a real node that the scheduler did not send."""
        if node is not None:
            metadata = node["metadata"]
            return metadata.get("labels") or {}, metadata.get("annotations") or {}, node.get("status")
        cached = self.nodes.store.get(name)
        return ({}, {}, {}) if cached is None else (cached.labels, cached.annotations, cached.status)

    def _labelled_cluster(self, name: str, labels: Mapping[str, str]) -> str:
        """Return the configured lower cluster that a virtual node's labels name; empty: none."""
        if labels.get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL:
            return ""
        wanted = (labels.get(label, name) for label in (names.LABEL_LOWER_CLUSTER, names.LABEL_CLUSTER_ID))
        return next((cluster for cluster in wanted if cluster in self._clusters), "")

    def _is_unknown(self, name: str, labels: Mapping[str, str]) -> bool:
        return (
            labels.get(names.LABEL_NODE_TYPE) == names.NODE_TYPE_VIRTUAL
            and name not in self._configured
            and not self._labelled_cluster(name, labels)
        )

    def _changed(self, node: Object) -> None:
        if not self._is_unknown(node.name, node.labels):
            self._gone(node)
        elif node.name not in self._unknown:
            self._unknown.add(node.name)
            _UNKNOWN.set(len(self._unknown))
            self._log.warning(
                "virtual node belongs to no configured lower cluster",
                node=node.name,
                lower_cluster=node.labels.get(names.LABEL_LOWER_CLUSTER, ""),
                configured=sorted(self._clusters),
                effect=self._effect,
                next=self._next_step(node.name),
            )

    def _gone(self, node: Object) -> None:
        self._unknown.discard(node.name)
        _UNKNOWN.set(len(self._unknown))

    async def _report_absent(self) -> None:
        await self.nodes.wait_synced()
        before: set[str] = set()
        reported: set[str] = set()
        while True:
            absent = self._absent()
            reported &= absent
            for cluster in sorted((absent & before) - reported):
                reported.add(cluster)
                self._log.warning(
                    "configured lower cluster has no virtual node",
                    cluster=cluster,
                    nodes=sorted(name for name, (of, _) in self._configured.items() if of == cluster),
                    unknown_nodes=sorted(self._unknown),
                    next="start its virtual node, or correct the cluster's name or nodes in the configuration",
                )
            before = absent
            await asyncio.sleep(_LOOK)


def _shrink(node: Object) -> Object:
    allocatable = (node.status or {}).get("allocatable")
    return node.with_fields(spec={}, status={"allocatable": allocatable} if allocatable else {})
