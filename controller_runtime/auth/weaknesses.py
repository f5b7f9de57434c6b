"""Finds weaknesses of a connection in a kubeconfig: logged at start, reported by ``check`` and ``inspect``."""

from __future__ import annotations

from collections.abc import Iterator

from controller_runtime import log
from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.process.listening import is_loopback


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
