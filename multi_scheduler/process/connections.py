"""Clients of all clusters. A lower cluster whose kubeconfig changes is connected again; the others continue.

If a ClusterProfile adds or removes a cluster, the work starts again with other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from clusterset.config import Cluster
from clusterset.following import Kubeconfigs, changes
from clusterset.profile_clusters import ProfileClusters
from controller_runtime import log
from controller_runtime.client import connecting
from controller_runtime.client.client import Client
from multi_scheduler.config import Config
from multi_scheduler.process.configuration import ProcessSettings

_POLL = 2.0
"""Seconds between checks of the kubeconfig files and the ClusterProfiles."""
_PATIENCE = 10.0
"""Maximum seconds to wait at start until the ClusterProfiles are read; if they arrive later, the clients are restarted."""
_INTERVAL = 60.0
"""Minimum seconds between two changes of the clusters. Each change restarts all clients, and users who are not
administrators can cause changes, too."""

Work = Callable[[Config, Client, Mapping[str, Client]], Awaitable[None]]
"""Called with the configuration including the clusters of ClusterProfiles, the client of the upper cluster, and the clients of
the lower clusters by name."""


async def run(options: ProcessSettings, program: str, work: Work) -> None:
    """Run the work until cancelled; start it again when ClusterProfiles add or remove clusters.

    ``work`` ends only when it is cancelled. ``program`` is the User-Agent of requests, which API servers log.

    Raises:
        ConfigError: a setting or file is wrong and the user must correct it.
    """
    profiles = ProfileClusters(options.config)
    kubeconfigs = Kubeconfigs(options.config.clusters, component=program, loads_new=True)
    async with contextlib.AsyncExitStack() as stack:
        if options.config.cluster_profiles is not None:
            upper = await stack.enter_async_context(_upper(options, program))
            await stack.enter_async_context(profiles.following(upper, restarts_all=True))
        stack.push_async_callback(kubeconfigs.close)
        await kubeconfigs.load(options.config.clusters)
        await _profiles_loaded(profiles, kubeconfigs)
        while await _serve(options, program, work, profiles, kubeconfigs):
            log.get_logger(component=program).info("ClusterProfiles changed, restarting the clients")


async def _serve(
    options: ProcessSettings, program: str, work: Work, profiles: ProfileClusters, kubeconfigs: Kubeconfigs
) -> bool:
    """Run the work with clients of the clusters that can be used now; return whether to start it with others."""
    logger, now = log.get_logger(component=program), asyncio.get_running_loop().time
    kubeconfigs.poll(profiles.merged())  # the new clients use all that was loaded until now
    used, started = _usable(profiles, kubeconfigs), now()
    async with _clients(options, used, kubeconfigs, program) as (upper, lower):
        config = msgspec.structs.replace(options.config, clusters=used)
        serving = asyncio.ensure_future(work(config, upper, lower))
        try:
            while serving not in (await asyncio.wait({serving}, timeout=_POLL))[0]:
                for name in sorted(kubeconfigs.poll(profiles.merged()) & lower.keys()):
                    connecting.warn(kubeconfigs.loaded[name], cluster=name)
                    logger.info("kubeconfig changed, connecting again", cluster=name)
                    await lower[name].reconnect(kubeconfigs.loaded[name])
                change = changes(used, _usable(profiles, kubeconfigs))
                if (change.added or change.removed) and now() - started >= _INTERVAL:
                    return True
            await serving
            return False
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def _usable(profiles: ProfileClusters, kubeconfigs: Kubeconfigs) -> list[Cluster]:
    return [cluster for cluster in profiles.merged() if cluster.name in kubeconfigs.loaded]


async def _profiles_loaded(profiles: ProfileClusters, kubeconfigs: Kubeconfigs) -> None:
    """Wait for some seconds until the ClusterProfiles are read and their kubeconfigs are loaded."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            kubeconfigs.poll(profiles.merged())
            while not profiles.has_synced or kubeconfigs.is_loading:
                await asyncio.sleep(0.1)
                kubeconfigs.poll(profiles.merged())


def _upper(options: ProcessSettings, program: str) -> AbstractAsyncContextManager[Client]:
    return connecting.connected(
        options.kubeconfig, server=options.master, cluster="upper", user_agent=program
    )


@contextlib.asynccontextmanager
async def _clients(
    options: ProcessSettings, clusters: Sequence[Cluster], kubeconfigs: Kubeconfigs, program: str
) -> AsyncIterator[tuple[Client, Mapping[str, Client]]]:
    """Yield the clients of the upper cluster and of the lower clusters by name."""
    async with contextlib.AsyncExitStack() as stack:
        upper = await stack.enter_async_context(_upper(options, program))
        lower: dict[str, Client] = {}
        for cluster in clusters:
            found = kubeconfigs.loaded[cluster.name]
            connecting.warn(found, cluster=cluster.name)
            client = Client(found, user_agent=program, cluster=cluster.name, cache_bytes=cluster.cache_bytes)
            lower[cluster.name] = await stack.enter_async_context(client)
        yield upper, lower
