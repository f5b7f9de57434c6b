"""Nodes with their pods and their measured usage: those of a lower cluster, or the real nodes of the upper cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from clusterset.usage import UsageConfig
from controller_runtime.client.client import Client
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.usage import node_annotations
from multi_scheduler.usage.feed import UsageFeed
from multi_scheduler.usage.sources import make_source
from multi_scheduler.usage.store import UsageStore


@dataclass(eq=False)
class MeasuredNodes:
    """An index of nodes and pods, and the usage of these nodes.

    Raises:
        ConfigError: the address of Prometheus is missing or wrong.
    """

    cluster: str
    """Name in logs and metrics."""
    client: Client
    config: UsageConfig
    index: ClusterIndex

    def __post_init__(self) -> None:
        """Create the store of the usage; ``measure`` fills it."""
        config = self.config
        self.usage = UsageStore(
            self.cluster,
            clock=now,
            window=config.window,
            max_age=config.max_age_seconds,
            thresholds=config.pressure,
        )
        source = make_source(config, self.client)
        self._feed = (
            UsageFeed(self.cluster, source, self.usage, self.index.cpus, config.interval_seconds)
            if source is not None
            else None
        )

    async def measure(self) -> None:
        """Read the usage periodically until cancelled; return immediately if there is no source that must be read."""
        if self._feed is not None:
            await self._feed.run()

    def annotated(self, name: str, found: Mapping[str, str]) -> None:
        """Store usage and congestion from a node's annotations; forget the node if it is not in the index."""
        node = self.index.node(name)
        if node is None:
            self.usage.forget(name)
            return
        if self.config.source == "Annotations":
            figures = [
                node_annotations.read(found, resource, node.allocatable.get(resource, 0))
                for resource in (node_annotations.CPU, node_annotations.MEMORY)
            ]
            if any(figures):
                self.usage.put(name, node_annotations.time(found), *figures)
            else:  # the annotator removes the annotations of unknown usage
                self.usage.forget(name)
        congestion = {key: found[key] for key in (node_annotations.CONGESTION,) if key in found}
        self.usage.annotate(name, congestion)


def now() -> float:
    """Return the seconds of the event loop's clock."""
    return asyncio.get_running_loop().time()
