"""Fills and renews the Secrets with the certificates of the extender and of kube-scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controller_runtime import log, resources
from controller_runtime.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from controller_runtime.tls.reloader import CertificateReloader, expiry, make_ca, self_signed
from multi_scheduler.certificates.secrets import (
    ClientSide,
    ServerSide,
    read_client,
    read_server,
    renewed_client,
    renewed_server,
)

_LOOK = 60.0
"""Seconds between checks of the Secrets."""
_RETRY = 5.0
_AGAIN = 0.5
"""Seconds after which a Secret that another replica wrote is read again."""


@dataclass(eq=False)
class CertificateKeeper:
    """Reads both Secrets, fills them, renews their certificates, and serves with them.

    Every replica does the same. The first write wins, because a write carries the resourceVersion that was read.
    The process remembers the content of the Secrets. If a Secret is emptied, the same content is written again, because
    the running scheduler trusts no other CA.
    """

    client: resources.ObjectClient
    namespace: str
    """Namespace of the Secrets."""
    server_secret: str
    """Name of the extender's Secret."""
    client_secret: str
    """Name of the scheduler's Secret."""
    hosts: Sequence[str]
    """Names and addresses by which the scheduler may call the extender."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _server: ServerSide | None = None
    _scheduler: ClientSide | None = None
    _error: str = "the Secrets with the certificates have not been read yet"

    def __post_init__(self) -> None:
        """Create a temporary self-signed certificate, which ``tls`` serves until ``look`` has read the Secrets."""
        self._log = log.get_logger(component="certificates")
        # No client has a certificate of this CA, so every call is refused until the Secret has been read.
        self.tls = CertificateReloader.from_pair(
            self_signed("virtual-node-extender", hosts=self.hosts), client_ca=make_ca("nobody").certificate
        )

    def unready(self) -> str | None:
        """Return why the scheduler cannot call the extender yet; None if it can."""
        return self._error or None

    async def run(self) -> None:
        """Check the Secrets periodically until cancelled."""
        while True:
            wait = _LOOK
            try:
                await self.look()
            except (AlreadyExists, Conflict):
                wait = _AGAIN
            except ApiError as error:
                wait = _RETRY
                self._fail(error)
            await asyncio.sleep(wait)

    async def look(self) -> None:
        """Read both Secrets once, and write what is missing or due for renewal.

        Raises:
            ApiError: a request failed; `Conflict` or `AlreadyExists` if another replica wrote first.
        """
        now = self.now()
        secret = await self._read(self.server_secret)
        held = read_server(secret.get("data"))
        server = renewed_server(held or self._server, self.hosts, now=now)
        if server != held:
            await self._write(secret, server.data())
            self._log.info("certificates written", secret=f"{self.namespace}/{self.server_secret}")
        if server != self._server:
            self.tls.replace(server.serving)
            self.tls.trust(server.bundle)
            self._server = server
            ends = expiry(server.serving.certificate).isoformat()
            self._log.info("serving certificate in use", expires=ends)
        secret = await self._read(self.client_secret)
        client_held = read_client(secret.get("data"))
        scheduler = renewed_client(client_held or self._scheduler, server, now=now)
        if scheduler != client_held:
            await self._write(secret, scheduler.data())
            self._log.info("client certificate written", secret=f"{self.namespace}/{self.client_secret}")
        self._scheduler = scheduler
        self._error = ""

    async def _read(self, name: str) -> dict[str, Any]:
        try:
            return await self.client.get(resources.SECRETS, name, namespace=self.namespace)
        except NotFound:
            return {"metadata": {"name": name, "namespace": self.namespace}, "type": "Opaque"}

    async def _write(self, secret: Mapping[str, Any], data: Mapping[str, str]) -> None:
        body = {**secret, "data": {**(secret.get("data") or {}), **data}}
        if secret["metadata"].get("resourceVersion"):
            await self.client.update(resources.SECRETS, body)
        else:
            await self.client.create(resources.SECRETS, body, namespace=self.namespace)

    def _fail(self, error: ApiError) -> None:
        text = str(error)
        if isinstance(error, Forbidden):
            text += (
                f". Create Secrets {self.server_secret} and {self.client_secret} in namespace {self.namespace} "
                "and grant get and update on them (the chart does)"
            )
        if self._server is not None and self._scheduler is not None:
            self._log.warning("certificates cannot be checked now", error=text)
            return
        if text != self._error:
            self._log.error("no certificates, so the scheduler cannot call the extender", error=text)
        self._error = text
