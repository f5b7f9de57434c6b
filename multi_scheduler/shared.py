"""What the agents share: the state of the lower clusters with their usage, and one view of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from msgspec import structs

from clusterset.config import Cluster
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.events import EventRecorder
from multi_scheduler.agent import Agent, AgentContext, load
from multi_scheduler.agents.fit.agent import FitSettings
from multi_scheduler.bound_pods import BoundPods
from multi_scheduler.config import AgentConfig, Config
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.lower_state import UpperNodes
from multi_scheduler.view import View
from multi_scheduler.virtual_node import VirtualNode

FIT = "fit"


class Shared:
    """Creates agents that share one view."""

    def __init__(
        self,
        config: Config,
        upper: Client,
        bound_pods: Informer,
        recorder: EventRecorder | None = None,
        *,
        directory: NodeDirectory | None = None,
    ) -> None:
        """Create the state without lower clusters; ``run`` fills it with those that are added.

        Without ``recorder`` the agents write no events, and without ``directory`` no agent finds virtual nodes by name
        (``AgentContext.find_node``). The caller runs ``bound_pods``.

        Raises:
            ConfigError: a setting of the fit agent is wrong.
        """
        self._config, self._directory = config, directory
        settings = {agent.name: agent.config for agent in config.agents}
        self._fits = FIT in settings
        fit = AgentContext(FIT, settings.get(FIT, {}), upper, {})
        self.state = ClusterState(
            fit.read_settings(FitSettings),
            upper,
            BoundPods(bound_pods),
            recorder,
            self._find_node,
            config.ignored,
        )
        self._upper_nodes = UpperNodes(upper, config.upper_usage) if config.upper_usage is not None else None
        self.view = View(self.state, self._upper_nodes.measured if self._upper_nodes is not None else None)
        self._lower: dict[str, Client] = {}
        self._clusters: dict[str, Cluster] = {}
        self._context = replace(
            fit,
            lower=self._lower,
            clusters=self._clusters,
            bound_pods=bound_pods,
            recorder=recorder,
            find_node=self._find_node,
            state=self.state,
            view=self.view,
        )

    def add(self, cluster: Cluster, client: Client) -> None:
        """Take a lower cluster into account.

        Raises:
            ConfigError: the source of its usage is wrong.
        """
        config = structs.replace(
            cluster,
            enable_controllers=list(self._config.controllers(cluster)),
            usage=cluster.usage or self._config.usage,
        )
        self._lower[cluster.name], self._clusters[cluster.name] = client, config
        self.state.add(config, client, self._config.controllers(cluster))

    async def remove(self, cluster: str) -> None:
        """Forget a lower cluster; return when its client is no longer used."""
        del self._lower[cluster], self._clusters[cluster]
        await self.state.remove(cluster)

    def agent(self, config: AgentConfig) -> Agent:
        """Create an agent.

        Raises:
            ConfigError: the agent does not exist, or a setting is wrong.
        """
        return load(config.name, self.context(config))

    def context(self, config: AgentConfig) -> AgentContext:
        """Return the context of an agent."""
        return replace(self._context, name=config.name, settings=config.config)

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
            group.create_task(self.state.run(measures=self.view.is_used), name="state")
            if self.view.is_used and self._upper_nodes is not None:
                group.create_task(self._upper_nodes.run(), name="real nodes")
