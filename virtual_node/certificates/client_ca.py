"""The CA of client certificates that the kubelet APIs accept, from a file or from the upper cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from controller_runtime import log
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from virtual_node.kubelet.auth.authentication import load_client_ca

_REFRESH_SECONDS = 300.0
"""Seconds between two reads of the published CA, which changes once in years. A watch would need two more
rights in every installation."""
_RETRY = 15.0
"""Seconds between two reads while the CA is unknown, because users cannot read logs without it."""

_log = log.get_logger(component="kubelet")


@dataclass(eq=False, repr=False)
class ClientAuthority:
    """Holds the CA of our callers' client certificates, and follows its changes.

    Attributes:
        known: path of the file, or the published CA (PEM); empty while the CA is unknown.
    """

    file: str
    """Path of a PEM file, which the server's certificate reloader follows; empty: the CA that the upper cluster
    publishes."""
    upper: Client
    """The upper cluster."""
    changed: Callable[[bytes], None]
    """Called with a new CA (PEM); may raise ConfigError."""

    def __post_init__(self) -> None:
        """Use the file, if there is one."""
        self.known: str | bytes = self.file or b""

    async def load(self) -> None:
        """Read the CA once; on an error, callers need bearer tokens until a later read succeeds."""
        if self.file:
            return
        try:
            self.known = await load_client_ca(self.upper)
        except (ApiError, ConfigError) as error:
            _log.warning(
                "client CA not readable: only callers with bearer tokens are accepted",
                why=str(error),
                fix="grant get on configmap kube-system/extension-apiserver-authentication, or --client-verify-ca",
            )

    async def follow(self) -> None:
        """Read the CA periodically until cancelled, because it may change; return at once if it is a file."""
        while not self.file:
            await asyncio.sleep(_REFRESH_SECONDS if self.known else _RETRY)
            try:
                found = await load_client_ca(self.upper)
                if found == self.known:
                    continue
                self.changed(found)
            except (ApiError, ConfigError) as error:
                _log.debug("client CA not read", why=str(error))
                continue
            self.known = found
            _log.info("using the client CA of the upper cluster", bytes=len(found))
