"""Clients of all clusters. A lower cluster whose kubeconfig changes is connected again; the others continue.

If ClusterProfiles add or remove a cluster, only that cluster begins or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from clusterset.config import Cluster
from clusterset.following import Kubeconfigs, changes
from clusterset.profile_clusters import ProfileClusters
from controller_runtime import log
from controller_runtime.client.client import Client, connected, warn
from multi_scheduler.config import ProcessSettings

_POLL = 2.0
"""Seconds between checks of the kubeconfig files and the ClusterProfiles."""
_PATIENCE = 10.0
"""Maximum seconds to wait at start until the ClusterProfiles are read; clusters that come later are added."""


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
