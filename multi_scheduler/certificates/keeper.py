"""Fills and renews the Secrets with the certificates of the extender and of kube-scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from controller_runtime import log, resources
from controller_runtime.auth.secret_key import SecretClient
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


class CertificateKeeper:
    """Reads both Secrets, fills them, renews their certificates, and serves with them.

    Every replica does the same. The first write wins, because a write carries the resourceVersion that was read.
    The process remembers the content of the Secrets. If a Secret is emptied, the same content is written again, because
    the running scheduler trusts no other CA.
    """

    def __init__(
        self,
        client: SecretClient,
        *,
        namespace: str,
        server_secret: str,
        client_secret: str,
        hosts: Sequence[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create a temporary self-signed certificate, which ``tls`` serves until ``look`` has read the Secrets.

        Args:
            client: client of the upper cluster.
            namespace: namespace of the Secrets.
            server_secret: name of the extender's Secret.
            client_secret: name of the scheduler's Secret.
            hosts: names and addresses by which the scheduler may call the extender.
            now: wall clock.
        """
        self._client = client
        self._namespace = namespace
        self._names = server_secret, client_secret
        self._hosts = list(hosts)
        self._now = now
        self._server: ServerSide | None = None
        self._scheduler: ClientSide | None = None
        self._error = "the Secrets with the certificates have not been read yet"
        self._log = log.get_logger(component="certificates")
        # No client has a certificate of this CA, so every call is refused until the Secret has been read.
        self.tls = CertificateReloader.from_pair(
            self_signed("virtual-node-extender", hosts=hosts), client_ca=make_ca("nobody").certificate
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
        server_name, client_name = self._names
        now = self._now()
        secret = await self._read(server_name)
        held = read_server(secret.get("data"))
        known = held or self._server
        server = renewed_server(known, self._hosts, now=now) or known
        assert server is not None
        if server != held:
            await self._write(secret, server.data())
            self._log.info("certificates written", secret=f"{self._namespace}/{server_name}")
        if server != self._server:
            self.tls.replace(server.serving)
            self.tls.trust(server.bundle)
            self._server = server
            ends = expiry(server.serving.certificate).isoformat()
            self._log.info("serving certificate in use", expires=ends)
        secret = await self._read(client_name)
        client_held = read_client(secret.get("data"))
        client_known = client_held or self._scheduler
        scheduler = renewed_client(client_known, server, now=now) or client_known
        assert scheduler is not None
        if scheduler != client_held:
            await self._write(secret, scheduler.data())
            self._log.info("client certificate written", secret=f"{self._namespace}/{client_name}")
        self._scheduler = scheduler
        self._error = ""

    async def _read(self, name: str) -> dict[str, Any]:
        try:
            return await self._client.get(resources.SECRETS, name, namespace=self._namespace)
        except NotFound:
            return {"metadata": {"name": name, "namespace": self._namespace}, "type": "Opaque"}

    async def _write(self, secret: Mapping[str, Any], data: Mapping[str, str]) -> None:
        body = {**secret, "data": {**(secret.get("data") or {}), **data}}
        if secret["metadata"].get("resourceVersion"):
            await self._client.update(resources.SECRETS, body)
        else:
            await self._client.create(resources.SECRETS, body, namespace=self._namespace)

    def _fail(self, error: ApiError) -> None:
        text = str(error)
        if isinstance(error, Forbidden):
            text += (
                f". Create Secrets {' and '.join(self._names)} in namespace {self._namespace} "
                "and grant get and update on them (the chart does)"
            )
        if self._server is not None and self._scheduler is not None:
            self._log.warning("certificates cannot be checked now", error=text)
            return
        if text != self._error:
            self._log.error("no certificates, so the scheduler cannot call the extender", error=text)
        self._error = text
