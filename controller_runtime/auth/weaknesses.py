"""What is weak in a connection that a kubeconfig describes: said at start, by ``check`` and by ``inspect``."""

from __future__ import annotations

from controller_runtime import log
from controller_runtime.auth.connection import ClusterConfig
from controller_runtime.process.listening import is_loopback


def weaknesses(config: ClusterConfig) -> list[tuple[str, str]]:
    """Return each weakness of the way to an API server, with what to do about it.

    A server on loopback is left out: ``kubectl proxy`` and tunnels are read over plain HTTP.
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
    """Log each weakness; for the start of a program."""
    for what, step in weaknesses(config):
        log.get_logger(component="kubeconfig").warning(
            "the way to an API server is weak", cluster=cluster, source=config.source, error=what, next=step
        )
