"""Clients of all clusters, created again when a lower cluster's kubeconfig file or a ClusterProfile changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from clusterset.config import Cluster
from clusterset.connection import connection, trouble
from controller_runtime import log
from controller_runtime.auth import kubeconfig, weaknesses
from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.util.file_changes import FileChanges
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
    """Run the work until cancelled; restart it with new clients when a lower kubeconfig or ClusterProfile changed.

    ``work`` ends only when it is cancelled. ``program`` is the User-Agent of requests, which API servers log.

    Raises:
        ConfigError: a setting or file is wrong and the user must correct it.
    """
    clusters = options.config.clusters
    files = {cluster.name: cluster.kubeconfig for cluster in clusters}
    changes = FileChanges(files)
    logger = log.get_logger(component=program)
    async with following(options, program) as profiles:
        await profiles.settle(_PATIENCE)
        while True:
            wanted = profiles.config()
            serving = asyncio.create_task(
                _connected(options, wanted, profiles, program, work), name="serving"
            )
            changed: set[str] = set()
            refusal = ""
            try:
                while True:
                    changed |= set(changes.changed(files))
                    if changed:
                        if not (found := await _unusable(clusters)):
                            break
                        if found != refusal:
                            refusal = found
                            logger.error("kubeconfigs not applied", clusters=sorted(changed), error=found)
                    if profiles.is_changed():
                        break
                    if serving in (await asyncio.wait({serving}, timeout=_POLL))[0]:
                        await serving
                        return
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            if changed:
                logger.info("kubeconfigs changed, restarting the clients", clusters=sorted(changed))
            else:
                logger.info("ClusterProfiles changed, restarting the clients")


async def _unusable(clusters: Sequence[Cluster]) -> str:
    """Return what is wrong with the current kubeconfig files; empty: they can be used.

    Called before the running clients are stopped, so that a bad file of one cluster does not stop scheduling for all.
    """
    for cluster in clusters:
        if found := await trouble(cluster):
            return found
    return ""


async def _connected(
    options: ProcessSettings, wanted: Config, profiles: ProfileClusters, program: str, work: Work
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        config = await kubeconfig.load(options.kubeconfig, server=options.master)
        weaknesses.warn(config, cluster="upper")
        upper = await stack.enter_async_context(Client(config, user_agent=program, cluster="upper"))
        lower = {}
        for cluster, found in zip(wanted.clusters, await _loaded(wanted.clusters), strict=True):
            if isinstance(found, Exception) and profiles.is_profile(cluster.name):
                profiles.failed(cluster.name, str(found))
                continue
            if isinstance(found, BaseException):
                raise found
            weaknesses.warn(found, cluster=cluster.name)
            client = Client(found, user_agent=program, cluster=cluster.name, cache_bytes=cluster.cache_bytes)
            lower[cluster.name] = await stack.enter_async_context(client)
        used = [cluster for cluster in wanted.clusters if cluster.name in lower]
        await work(msgspec.structs.replace(wanted, clusters=used), upper, lower)


async def _loaded(clusters: Sequence[Cluster]) -> list[ConnectionConfig | BaseException]:
    """Return each cluster's connection, or the error; at most ``AT_ONCE`` credential plugins run concurrently."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def load(cluster: Cluster) -> ConnectionConfig:
        async with slots:
            return await connection(cluster)

    return await asyncio.gather(*map(load, clusters), return_exceptions=True)
