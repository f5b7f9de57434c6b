"""Clients of all clusters. A lower cluster whose kubeconfig changes is connected again; the others continue.

If a ClusterProfile adds or removes a cluster, the work starts again with other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from clusterset.config import Cluster
from clusterset.connection import connection
from clusterset.following import KubeconfigFollower
from controller_runtime import log
from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.client import connecting
from controller_runtime.client.client import Client
from controller_runtime.client.connecting import connected
from controller_runtime.errors import ConfigError
from multi_scheduler.config import Config
from multi_scheduler.process.profile_clusters import AT_ONCE, ProfileClusters, following
from multi_scheduler.process.settings import ProcessSettings

_POLL = 2.0
"""Seconds between checks of the kubeconfig files."""

_PATIENCE = 10.0
"""Maximum seconds to wait at start until the ClusterProfiles are read; if they arrive later, the clients are restarted."""

Work = Callable[[Config, Client, Mapping[str, Client]], Awaitable[None]]
"""Called with the configuration including the clusters of ClusterProfiles, the client of the upper cluster, and the clients of
the lower clusters by name."""


async def run(options: ProcessSettings, program: str, work: Work) -> None:
    """Run the work until cancelled; start it again when ClusterProfiles add or remove clusters.

    ``work`` ends only when it is cancelled. ``program`` is the User-Agent of requests, which API servers log.

    Raises:
        ConfigError: a setting or file is wrong and the user must correct it.
    """
    files = KubeconfigFollower(options.config.clusters, component=program)
    logger = log.get_logger(component=program)
    async with following(options, program) as profiles:
        await profiles.settle(_PATIENCE)
        while True:
            lower: dict[str, Client] = {}
            serving = asyncio.create_task(
                _connected(options, profiles.config(), profiles, program, work=work, lower=lower),
                name="serving",
            )
            try:
                while serving not in (await asyncio.wait({serving}, timeout=_POLL))[0]:
                    if lower:
                        rotated = await files.reread(options.config.clusters)
                        listed = [cluster for cluster in options.config.clusters if cluster.name in rotated]
                        await _reconnect([*listed, *profiles.rotated()], lower, program)
                    if profiles.is_changed():
                        break
                else:
                    await serving
                    return
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            logger.info("ClusterProfiles changed, restarting the clients")


async def _reconnect(clusters: Sequence[Cluster], lower: Mapping[str, Client], program: str) -> None:
    """Connect again to the clusters whose kubeconfigs have changed."""
    logger = log.get_logger(component=program)
    for cluster in clusters:
        try:
            found = await connection(cluster)
        except ConfigError as error:  # it has changed again since it was checked
            logger.error("kubeconfig not applied", cluster=cluster.name, error=str(error))  # noqa: TRY400 - one clear line
            continue
        connecting.warn(found, cluster=cluster.name)
        logger.info("kubeconfig changed, connecting again", cluster=cluster.name)
        await lower[cluster.name].reconnect(found)


async def _connected(
    options: ProcessSettings,
    wanted: Config,
    profiles: ProfileClusters,
    program: str,
    *,
    work: Work,
    lower: dict[str, Client],
) -> None:
    """Run the work with clients; ``lower`` gets the clients of the lower clusters, all at once."""
    async with contextlib.AsyncExitStack() as stack:
        upper = await stack.enter_async_context(
            connected(options.kubeconfig, server=options.master, cluster="upper", user_agent=program)
        )
        clients = {}
        for cluster, found in zip(wanted.clusters, await _loaded(wanted.clusters), strict=True):
            if isinstance(found, Exception) and profiles.is_profile(cluster.name):
                profiles.failed(cluster.name, str(found))
                continue
            if isinstance(found, BaseException):
                raise found
            connecting.warn(found, cluster=cluster.name)
            client = Client(found, user_agent=program, cluster=cluster.name, cache_bytes=cluster.cache_bytes)
            clients[cluster.name] = await stack.enter_async_context(client)
        lower.update(clients)
        used = [cluster for cluster in wanted.clusters if cluster.name in lower]
        await work(msgspec.structs.replace(wanted, clusters=used), upper, lower)


async def _loaded(clusters: Sequence[Cluster]) -> list[ConnectionConfig | BaseException]:
    """Return each cluster's connection, or the error; at most ``AT_ONCE`` credential plugins run concurrently."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def load(cluster: Cluster) -> ConnectionConfig:
        async with slots:
            return await connection(cluster)

    return await asyncio.gather(*map(load, clusters), return_exceptions=True)
