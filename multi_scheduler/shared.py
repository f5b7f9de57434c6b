"""What the multi-scheduler and the annotator share: clients of all clusters, and the state of the lower clusters.

A lower cluster whose kubeconfig changes is connected again; the others continue. If ClusterProfiles add or remove a cluster,
only that cluster begins or ends. Agents share one view of the state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import structs

from clusterset.config import Cluster
from clusterset.following import Kubeconfigs, changes
from clusterset.profile_clusters import ProfileClusters
from controller_runtime import log
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, connected, warn
from controller_runtime.events import EventRecorder
from multi_scheduler.agent import Agent, AgentContext, load
from multi_scheduler.agents.fit.agent import FitSettings
from multi_scheduler.bound_pods import BoundPods
from multi_scheduler.config import AgentConfig, Config, ProcessSettings
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.lower_state import UpperNodes
from multi_scheduler.view import View
from multi_scheduler.virtual_node import VirtualNode

_POLL = 2.0
"""Seconds between checks of the kubeconfig files and the ClusterProfiles."""
_PATIENCE = 10.0
"""Maximum seconds to wait at start until the ClusterProfiles are read; clusters that come later are added."""
FIT = "fit"


class Follower(Protocol):
    """Uses the lower clusters."""

    def add(self, cluster: Cluster, client: Client) -> None:
        """Begin to use a lower cluster."""

    async def remove(self, cluster: str) -> None:
        """Stop using a lower cluster, and close its client."""


@dataclass(eq=False)
class LowerClients:
    """The clients of the lower clusters that can be used now."""

    program: str
    """The User-Agent of requests, which API servers log."""
    profiles: ProfileClusters
    kubeconfigs: Kubeconfigs
    clients: dict[str, Client] = field(default_factory=dict)
    """By name of the lower cluster."""
    _used: list[Cluster] = field(default_factory=list)
    _followers: list[Follower] = field(default_factory=list)

    def inform(self, follower: Follower) -> None:
        """Let a follower use the present lower clusters, and those that are added later."""
        self._followers.append(follower)
        for cluster in self._used:
            follower.add(cluster, self.clients[cluster.name])

    async def update(self) -> None:
        """Connect to lower clusters that were added or have another kubeconfig; drop those that were removed."""
        logger = log.get_logger(component=self.program)
        rotated = self.kubeconfigs.poll(self.profiles.merged()) & self.clients.keys()
        for name in sorted(rotated):
            warn(self.kubeconfigs.loaded[name], cluster=name)
            logger.info("kubeconfig changed, connecting again", cluster=name)
            await self.clients[name].reconnect(self.kubeconfigs.loaded[name])
        usable = [one for one in self.profiles.merged() if one.name in self.kubeconfigs.loaded]
        change = changes(self._used, usable)
        for name in change.removed:
            logger.info("lower cluster removed", cluster=name)
            self._used = [cluster for cluster in self._used if cluster.name != name]
            await self._drop(name)
        for cluster in usable:
            if cluster.name in change.added:
                await self._connect(cluster)
        self._used = usable

    async def _connect(self, cluster: Cluster) -> None:
        loaded = self.kubeconfigs.loaded[cluster.name]
        warn(loaded, cluster=cluster.name)
        client = Client(
            loaded, user_agent=self.program, cluster=cluster.name, cache_bytes=cluster.cache_bytes
        )
        self.clients[cluster.name] = await client.__aenter__()
        for follower in self._followers:
            follower.add(cluster, client)

    async def _drop(self, name: str) -> None:
        client = self.clients.pop(name)
        for follower in self._followers:
            await follower.remove(name)
        await client.__aexit__(None, None, None)

    async def close(self) -> None:
        """Close all clients, which nothing may use any more."""
        for client in self.clients.values():
            await client.__aexit__(None, None, None)

    async def load(self, clusters: Sequence[Cluster]) -> None:
        """Connect to the lower clusters of the configuration, and to those of ClusterProfiles that are read within seconds.

        Raises:
            ConfigError: a kubeconfig of the configuration cannot be used.
        """
        await self.kubeconfigs.load(clusters)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                self.kubeconfigs.poll(self.profiles.merged())
                while not self.profiles.has_synced or self.kubeconfigs.is_loading:
                    await asyncio.sleep(0.1)
                    self.kubeconfigs.poll(self.profiles.merged())
        await self.update()


async def run(
    options: ProcessSettings, program: str, work: Callable[[Client, LowerClients], Awaitable[None]]
) -> None:
    """Run the work with clients of all clusters until cancelled.

    ``work`` ends only when it is cancelled.

    Raises:
        ConfigError: a setting or file is wrong and the user must correct it.
    """
    profiles = ProfileClusters(options.config)
    kubeconfigs = Kubeconfigs(options.config.clusters, component=program, loads_new=True)
    lower = LowerClients(program, profiles, kubeconfigs)
    async with contextlib.AsyncExitStack() as stack:
        upper = await stack.enter_async_context(_upper(options, program))
        await stack.enter_async_context(profiles.following(upper))
        stack.push_async_callback(kubeconfigs.close)
        stack.push_async_callback(lower.close)
        await lower.load(options.config.clusters)
        serving = asyncio.ensure_future(work(upper, lower))
        try:
            while serving not in (await asyncio.wait({serving}, timeout=_POLL))[0]:
                await lower.update()
            await serving
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def _upper(options: ProcessSettings, program: str) -> AbstractAsyncContextManager[Client]:
    return connected(options.kubeconfig, server=options.master, cluster="upper", user_agent=program)


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
