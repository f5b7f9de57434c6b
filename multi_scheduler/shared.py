"""What the agents share: the state of the lower clusters, one view of it, and a usage feed per cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from msgspec import structs

from clusterset.usage import UsageConfig
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.events.recorder import EventRecorder
from multi_scheduler.agent import Agent, AgentContext, load
from multi_scheduler.agents import congestion
from multi_scheduler.agents.fit.agent import FitSettings
from multi_scheduler.config import AgentConfig, Config
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.state import upper_nodes
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.upper_nodes import UpperNodes
from multi_scheduler.usage import node_annotations
from multi_scheduler.usage.feed import UsageFeed
from multi_scheduler.usage.sources import make_source
from multi_scheduler.usage.store import UsageStore
from multi_scheduler.view import RealNodes, View
from multi_scheduler.virtual_node import VirtualNode

FIT = "fit"


class Shared:
    """Creates agents that share one view."""

    def __init__(
        self,
        config: Config,
        upper: Client,
        lower: Mapping[str, Client],
        bound_pods: Informer | None = None,
        recorder: EventRecorder | None = None,
        *,
        directory: NodeDirectory | None = None,
    ) -> None:
        """Create the state, usage stores and feeds; ``run`` fills them.

        Without ``bound_pods`` the state has its own informer, without ``recorder`` the agents write no events, and
        without ``directory`` no agent finds virtual nodes by name (``AgentContext.find_node``).

        Raises:
            ConfigError: a setting of the fit agent is wrong.
        """
        self._directory = directory
        clusters = {
            cluster.name: structs.replace(cluster, enable_controllers=list(config.controllers(cluster)))
            for cluster in config.clusters
        }
        settings = {agent.name: agent.config for agent in config.agents}
        self._fits = FIT in settings
        fit = AgentContext(FIT, settings.get(FIT, {}), upper, lower)
        self.state = ClusterState(
            fit.read_settings(FitSettings),
            upper,
            lower,
            clusters,
            bound_pods=bound_pods,
            recorder=recorder,
            find_node=self._find_node,
        )
        self._context = replace(
            fit,
            clusters=clusters,
            bound_pods=bound_pods,
            recorder=recorder,
            find_node=self._find_node,
            state=self.state,
        )
        self.stores: dict[str, UsageStore] = {}
        """Measured usage by lower cluster."""
        self._feeds: list[UsageFeed] = []
        for name, client in lower.items():
            chosen = clusters[name].usage or config.usage
            self.stores[name] = _store(name, chosen)
            self._measure(name, chosen, client, self.stores[name], self.state.indexes[name])
            self.state.feeds[name].follow_nodes(
                partial(_annotated, self.stores[name], self.state.indexes[name], chosen.source)
            )
        self._upper_nodes: UpperNodes | None = None
        real: RealNodes | None = None
        if (measured := config.upper_usage) is not None:
            store, index = _store(upper_nodes.NAME, measured), ClusterIndex()
            changed = partial(_annotated, store, index, measured.source)
            self._upper_nodes = UpperNodes(upper, index, changed=changed)
            self._measure(upper_nodes.NAME, measured, upper, store, index)
            real = RealNodes(index, store)
        self.view = View(self.state, self.stores, real)

    def _measure(
        self, cluster: str, chosen: UsageConfig, client: Client, store: UsageStore, index: ClusterIndex
    ) -> None:
        """Add a feed for a cluster's usage, if there is a source that must be read."""
        source = make_source(chosen, client)
        if source is not None:
            self._feeds.append(
                UsageFeed(cluster, source, store, nodes=index.cpus, interval=chosen.interval_seconds)
            )

    def agent(self, config: AgentConfig) -> Agent:
        """Create an agent.

        Raises:
            ConfigError: the agent does not exist, or a setting is wrong.
        """
        return load(config.name, self.context(config))

    def context(self, config: AgentConfig) -> AgentContext:
        """Return the context of an agent."""
        return replace(self._context, name=config.name, settings=config.config, view=self.view)

    def _find_node(self, name: str) -> VirtualNode | None:
        return self._directory.find(name, None) if self._directory is not None else None

    def unready(self) -> str | None:
        """Return why the view is not filled yet; None if it is filled or not used."""
        return self.state.unready() if self.view.is_used else None

    async def run(self) -> None:
        """Fill the state and the view until cancelled; return immediately if no agent uses them."""
        if not (self._fits or self.view.is_used):
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self.state.run(), name="state")
            if self.view.is_used:
                if self._upper_nodes is not None:
                    group.create_task(self._upper_nodes.run(), name="real nodes")
                for feed in self._feeds:
                    group.create_task(feed.run(), name="usage")

    async def follow(self) -> None:
        """Follow nodes, pods and usage of the lower clusters until cancelled, without upper pods and reservations."""
        async with asyncio.TaskGroup() as group:
            for cluster in self.state.feeds.values():
                group.create_task(cluster.run(), name="cluster")
            for feed in self._feeds:
                group.create_task(feed.run(), name="usage")


def _store(cluster: str, chosen: UsageConfig) -> UsageStore:
    return UsageStore(
        cluster,
        clock=_now,
        window=chosen.window,
        max_age=chosen.max_age_seconds,
        thresholds=chosen.pressure,
    )


def _annotated(
    store: UsageStore, index: ClusterIndex, source: str, name: str, found: Mapping[str, str]
) -> None:
    """Store usage and congestion from a node's annotations; forget the node if it is not in the index."""
    node = index.node(name)
    if node is None:
        store.forget(name)
        return
    if source == "Annotations":
        figures = [
            node_annotations.read(found, resource, node.allocatable.get(resource, 0))
            for resource in (node_annotations.CPU, node_annotations.MEMORY)
        ]
        if any(figures):
            store.put(name, node_annotations.time(found), *figures)
        else:  # the annotator removes the annotations of unknown usage
            store.forget(name)
    store.annotate(name, {key: found[key] for key in (congestion.ANNOTATION,) if key in found})


def _now() -> float:
    return asyncio.get_running_loop().time()
