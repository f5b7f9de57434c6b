"""The connection to a lower cluster's API server."""

from __future__ import annotations

from clusterset.config import Cluster
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.connection import ConnectionConfig


async def connection(cluster: Cluster) -> ConnectionConfig:
    """Return how to connect to a lower cluster.

    Raises:
        ConfigError: the kubeconfig cannot be used.
    """
    return await kubeconfig.load(
        cluster.kubeconfig, context=cluster.context, server=cluster.server, in_cluster=False
    )
