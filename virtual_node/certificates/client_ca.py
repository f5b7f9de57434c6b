"""Whose client certificates the kubelet APIs accept: a file's CA, or the one that the upper cluster publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller_runtime import log
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from virtual_node.kubelet.auth.authentication import load_client_ca

_AGAIN = 300.0
"""Seconds between two looks at what the upper cluster publishes, which changes once in years. A watch would cost every
installation two rights more."""
_RETRY = 15.0
"""Seconds between two looks while nothing is known: without it nobody above has logs."""

_log = log.get_logger(component="kubelet")


class ClientAuthority:
    """Knows the CA of our callers.

    Args:
        file: PEM, which the server's certificate reloader follows; empty: what the upper cluster publishes.
        upper: the upper cluster.
        changed: told of another CA (PEM); may raise ConfigError.

    Attributes:
        known: a file's path, or PEM; empty while it is unknown.
    """

    def __init__(self, file: str, *, upper: Client, changed: Callable[[bytes], None]) -> None:
        self.known: str | bytes = file or b""
        self._file = file
        self._upper = upper
        self._changed = changed

    async def load(self) -> None:
        """Look once; without an answer callers need bearer tokens until there is one."""
        if self._file:
            return
        try:
            self.known = await load_client_ca(self._upper)
        except (ApiError, ConfigError) as error:
            _log.warning(
                "client CA unknown: callers need bearer tokens",
                why=str(error),
                fix="grant get on configmap kube-system/extension-apiserver-authentication, or --client-verify-ca",
            )

    async def follow(self) -> None:
        """Look again and again until cancelled: an upper cluster may be away when we start, and may change its CA."""
        while not self._file:
            await asyncio.sleep(_AGAIN if self.known else _RETRY)
            try:
                found = await load_client_ca(self._upper)
                if found == self.known:
                    continue
                self._changed(found)
            except (ApiError, ConfigError) as error:
                _log.debug("client CA not read", why=str(error))
                continue
            self.known = found
            _log.info("the upper cluster's client CA is in use", bytes=len(found))
