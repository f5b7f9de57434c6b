"""Adds the lower clusters of ClusterProfiles to the configuration of a command."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from clusterset import profile_clusters
from controller_runtime.client.client import Client
from virtual_node.commands.common import output
from virtual_node.config.types import Config


@contextlib.asynccontextmanager
async def added(config: Config, upper: Client) -> AsyncIterator[None]:
    """Add the clusters of ClusterProfiles to ``config``; print refused ClusterProfiles.

    The clusters' kubeconfigs exist within the context.

    Raises:
        ConfigError: the ClusterProfiles or the file of providers cannot be read.
    """
    async with profile_clusters.added(config, upper) as refused:
        for key, why in refused.items():
            output.note(f"ClusterProfile {key} is not used: {why}")
        yield
