"""Facts that follow from the configuration of the daemon, for the commands that have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from clusterset.config import Cluster
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from virtual_node.config.types import Config
from virtual_node.controllers.pods import api_services
from virtual_node.examine import path_reading  # noqa: F401 - registers how names are read
from virtual_node.examine.facts import API_ACCESS, CONFIGURED, DOMAIN, NAMES, ApiAccess
from virtual_node.examine.reader import Reader
from virtual_node.examine.snapshot import Snapshot, View
from virtual_node.examine.source import Source
from virtual_node.translate.pods import api_server


async def add(
    config: Config,
    snapshot: Snapshot,
    upper: Client,
    lowers: Iterable[tuple[Cluster, Client | ConfigError]],
) -> None:
    """Add the facts about names and the API of pods to what was read of all clusters."""
    snapshot.upper.put(DOMAIN, config.cluster_domain)
    views = {view.name: view for view in snapshot.lowers if not view.error}
    reading = [
        read_names(cluster, client, views[cluster.name])
        for cluster, client in lowers
        if isinstance(client, Client) and cluster.name in views
    ]
    await asyncio.gather(*reading)
    if not snapshot.upper.error:
        snapshot.upper.put(API_ACCESS, await api_access(config, upper))


async def api_access(config: Config, upper: Client) -> ApiAccess:
    """Return what in-cluster clients in pods get, and where they reach the upper API server."""
    setting, identities = config.kubernetes_service, config.enable_serviceaccount
    if not (identities and api_server.may_use_upper(setting, identities=identities)):
        return ApiAccess(setting, identities)
    return ApiAccess(setting, identities, await api_services.find(upper, config.kubernetes_service_url))


async def read_names(cluster: Cluster, lower: Client, view: View) -> None:
    """Read by which names pods of a lower cluster find others; an error is recorded."""
    view.put(CONFIGURED, cluster)
    await Source(view, Reader(lower)).load([NAMES])
