"""Connects a program to a cluster: reads the kubeconfig, and warns if the connection is not protected."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from controller_runtime import log
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.process.listening import is_loopback


@contextlib.asynccontextmanager
async def connected(
    path: str, *, server: str, cluster: str, user_agent: str, qps: float = 50, burst: int = 100
) -> AsyncIterator[Client]:
    """Yield a client of the cluster that a kubeconfig leads to; log the weaknesses of its connection.

    Args:
        path: as for ``kubeconfig.load``.
        server: as for ``kubeconfig.load``.
        cluster: the cluster's name in logs and metrics.
        user_agent: as for ``Client``.
        qps: as for ``Client``.
        burst: as for ``Client``.

    Raises:
        ConfigError: the kubeconfig cannot be used.
    """
    config = await kubeconfig.load(path, server=server)
    warn(config, cluster=cluster)
    async with Client(config, qps=qps, burst=burst, user_agent=user_agent, cluster=cluster) as client:
        yield client


def weaknesses(config: ConnectionConfig) -> Iterator[tuple[str, str]]:
    """Yield each weakness of the connection to an API server with its remedy.

    A server on loopback is excluded: ``kubectl proxy`` and tunnels use plain HTTP there.
    """
    if config.server.lower().startswith("http:") and not is_loopback(config.host):
        what = "credentials and data" if config.has_credentials else "data"
        yield (
            f"server {config.server} is plain HTTP: others on the network path can read and change {what}",
            "give the server's https:// address in the kubeconfig, with certificate-authority-data",
        )
    if not config.verifies_server:
        yield (
            f"insecure-skip-tls-verify: others on the network path can impersonate {config.server}",
            "replace insecure-skip-tls-verify by certificate-authority-data in the kubeconfig",
        )


def warn(config: ConnectionConfig, *, cluster: str) -> None:
    """Log each weakness when a program starts."""
    for what, step in weaknesses(config):
        log.get_logger(component="kubeconfig").warning(
            "the connection to an API server is not protected",
            cluster=cluster,
            source=config.source,
            error=what,
            next=step,
        )
