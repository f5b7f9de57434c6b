"""Writes annotations to virtual nodes, and to lower nodes if it may, when their values change."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from datetime import UTC, datetime

from prometheus_client import Counter

from controller_runtime import log, resources
from controller_runtime.api import names, timestamps
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Forbidden, NotFound
from multi_scheduler.annotator.annotations import REQUESTED, Measurement, differ, values
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.node_filter import Node
from multi_scheduler.shared import Shared

_WRITES = Counter(
    "virtual_node_annotator_writes_total",
    "Nodes whose annotations were written, and attempts that failed.",
    ["cluster", "result"],
)


class Writer:
    """Compares the values of all nodes with the written ones."""

    def __init__(
        self,
        upper: Client,
        lower: Mapping[str, Client],
        shared: Shared,
        directory: NodeDirectory,
        *,
        refresh: float,
        threshold: float,
    ) -> None:
        """Create a writer that has written nothing yet.

        Args:
            upper: client of the upper cluster.
            lower: clients of the lower clusters whose nodes are annotated, by name.
            shared: state of the lower clusters.
            directory: finds the virtual nodes of a lower cluster.
            refresh: seconds after which unchanged annotations are written again.
            threshold: relative change of a value that causes a write.
        """
        self._upper, self._lower, self._shared, self._directory = upper, lower, shared, directory
        self._refresh, self._threshold = refresh, threshold
        self._written: dict[tuple[str, str], tuple[float, dict[str, str | None]]] = {}
        """Time and values of the last write by cluster and node."""
        self._log = log.get_logger(component="annotator")

    async def run(self, interval: float) -> None:
        """Write until cancelled, with ``interval`` seconds between two comparisons."""
        while True:
            # First the pause, so that the sources have been read: a missing value would remove an annotation.
            await asyncio.sleep(interval)
            await self.write()

    async def write(self) -> None:
        """Write the annotations that changed, one node after the other."""
        for cluster, index in self._shared.indexes.items():
            if self._shared.trouble(cluster):
                continue  # the state of the cluster may be outdated
            measured = {node.name: (node, self._measure(cluster, index, node)) for node in index.nodes()}
            for virtual in self._directory.of(cluster):
                pool = virtual.pool.items()
                chosen = [one for node, one in measured.values() if pool <= node.labels.items()]
                await self._write(self._upper, virtual.name, values(chosen))
            if client := self._lower.get(cluster):
                for name, (_, one) in measured.items():
                    if not await self._write(client, name, values([one])):
                        break  # without the right, the other nodes of the cluster would be refused, too

    def _measure(self, cluster: str, index: ClusterIndex, node: Node) -> Measurement:
        requested = {
            resource: sum(placed.requests.get(resource, 0) for placed in index.on(node.name).values())
            for resource in REQUESTED
        }
        return Measurement(node.allocatable, requested, self._shared.stores[cluster].usage(node.name))

    async def _write(self, client: Client, name: str, found: dict[str, str | None]) -> bool:
        """Patch a node if its values changed enough; return whether the account may write."""
        key, now = (client.cluster, name), asyncio.get_running_loop().time()
        at, before = self._written.get(key, (-math.inf, {}))
        if now - at < self._refresh and not differ(before, found, self._threshold):
            return True
        stamped = {**found, names.ANNOTATION_USAGE_AT: timestamps.rfc3339(datetime.now(UTC))}
        try:
            await client.patch(resources.NODES, name, {"metadata": {"annotations": stamped}})
        except NotFound:  # the node was just deleted
            self._written.pop(key, None)
        except ApiError as error:
            _WRITES.labels(client.cluster, "failed").inc()
            self._log.warning("node not annotated", cluster=client.cluster, node=name, error=str(error))
            return not isinstance(error, Forbidden)
        else:
            _WRITES.labels(client.cluster, "written").inc()
            self._written[key] = now, found
        return True
