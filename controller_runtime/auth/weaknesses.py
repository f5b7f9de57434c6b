"""Finds weaknesses of a connection in a kubeconfig: logged at start, reported by ``check`` and ``inspect``."""

from __future__ import annotations

from controller_runtime import log
from controller_runtime.auth.connection import ClusterConfig
from controller_runtime.process.listening import is_loopback


def weaknesses(config: ClusterConfig) -> list[tuple[str, str]]:
    """Return each weakness of the connection to an API server with its remedy.

    A server on loopback is excluded: ``kubectl proxy`` and tunnels use plain HTTP there.
    """
    found = []
    if config.server.lower().startswith("http:") and not is_loopback(config.host):
        what = "credentials and data" if config.has_credentials else "data"
        found.append(
            (
                f"server {config.server} is plain HTTP: whoever is on the way reads and changes {what}",
                "give the server's https:// address in the kubeconfig, with certificate-authority-data",
            )
        )
    if not config.verifies_server:
        found.append(
            (
                f"insecure-skip-tls-verify: whoever is on the way to {config.server} can be taken for it",
                "replace insecure-skip-tls-verify by certificate-authority-data in the kubeconfig",
            )
        )
    return found


def warn(config: ClusterConfig, *, cluster: str) -> None:
    """Log each weakness when a program starts."""
    for what, step in weaknesses(config):
        log.get_logger(component="kubeconfig").warning(
            "the way to an API server is weak", cluster=cluster, source=config.source, error=what, next=step
        )
