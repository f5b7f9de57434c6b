"""Certificates that the webhook manages itself: a CA and a serving pair, stored in a Secret.

Every replica watches the Secret and serves its certificate. The leader creates missing certificates and renews those
that lack a host name or have less than a third of their validity left. A new CA is first announced (written to the
webhook configurations) together with the old CA, and used afterwards. So the API server always trusts the certificate
that is served.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller_runtime import log, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists, ApiError, ConfigError, Conflict, Forbidden
from controller_runtime.objects import Object
from controller_runtime.tls.key_pairs import covers, share_left
from controller_runtime.tls.reloader import KeyPair, expiry, make_ca, sign

CA_VALIDITY = timedelta(days=3650)
SERVING_VALIDITY = timedelta(days=90)
_RENEW_SHARE = 1 / 3
_ANNOUNCE_WAIT = 3.0
"""Seconds between announcing and using a CA, so that all API servers receive the changed configuration."""
_CHECK_INTERVAL = 3600.0
"""Seconds between two checks whether a renewal is due."""
_RETRY = 5.0
_CACHE_DELAY = 60.0
"""Maximum seconds to wait after a write until the cache shows it."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Content of the Secret."""

    ca: KeyPair
    bundle: bytes
    """PEM of every CA that may have signed a certificate that is being served."""
    serving: KeyPair

    def data(self) -> dict[str, str]:
        """Return the data of the Secret."""
        parts = {
            "ca.crt": self.bundle,
            "ca.key": self.ca.key,
            "tls.crt": self.serving.certificate,
            "tls.key": self.serving.key,
        }
        return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def read(data: Mapping[str, Any] | None) -> Certificates | None:
    """Return the certificates in a Secret's data; None if any is missing or invalid."""
    try:
        parts = {
            name: base64.b64decode((data or {})[name]) for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")
        }
        newest = x509.load_pem_x509_certificates(parts["ca.crt"])[0]
        x509.load_pem_x509_certificate(parts["tls.crt"])
    except (KeyError, ValueError, TypeError):
        return None
    ca = KeyPair(newest.public_bytes(Encoding.PEM), parts["ca.key"])
    return Certificates(ca=ca, bundle=parts["ca.crt"], serving=KeyPair(parts["tls.crt"], parts["tls.key"]))


def renewed(current: Certificates | None, hosts: Sequence[str], *, now: datetime) -> Certificates | None:
    """Return the certificates to replace the current ones; None if no renewal is due.

    Args:
        current: content of the Secret; None: no Secret, or invalid content.
        hosts: host names and addresses at which the API server may call the webhook.
        now: wall clock, timezone-aware.
    """
    if current is None or share_left(current.ca.certificate, now) < _RENEW_SHARE:
        ca = make_ca("virtual-node-webhook-ca", validity=CA_VALIDITY, now=now)
        bundle = ca.certificate + (current.ca.certificate if current is not None else b"")
        return Certificates(ca, bundle, _serving(ca, hosts, now))
    serving = current.serving.certificate
    if share_left(serving, now) < _RENEW_SHARE or not covers(serving, hosts):
        return Certificates(current.ca, current.bundle, _serving(current.ca, hosts, now))
    return None


@dataclass(eq=False)
class CertificateKeeper:
    """Serves the Secret's certificates and, as leader, creates and renews them."""

    client: Client
    namespace: str
    name: str
    """Name of the Secret."""
    hosts: Sequence[str]
    """Host names and addresses at which the API server may call the webhook."""
    announce: Callable[[bytes], Awaitable[None]]
    """Writes a CA bundle to the webhook configurations."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        self._secret = Informer(
            self.client,
            resources.SECRETS,
            namespace=self.namespace,
            field_selector=f"metadata.name={self.name}",
            name="serving-certificate",
        )
        self._seen: Certificates | None = None
        """Last valid content of the Secret. If the Secret is deleted, this certificate stays in use."""
        self._written: tuple[str, float] | None = None
        """resourceVersion that our last write replaced, and the time of the write; None: the cache shows all
        our writes."""
        self._changed = asyncio.Event()
        self._recheck = asyncio.Event()
        self._secret.on_change(lambda _: self.recheck(), lambda _: self.recheck())
        self._log = log.get_logger(component="certificates")

    def ca(self) -> bytes | None:
        """Return the PEM of the CA in the Secret; None if the Secret has no valid certificates."""
        held = self._held()
        return held.ca.certificate if held is not None else None

    async def follow(self, use: Callable[[KeyPair], None]) -> None:
        """Call ``use`` with every new serving pair, until cancelled."""
        served = b""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._secret.run())
            while True:
                self._changed.clear()
                held = self._held()
                if held is not None and held.serving.certificate != served:
                    try:
                        use(held.serving)
                        served = held.serving.certificate
                    except ConfigError as error:
                        self._log.error("the Secret's certificate cannot be served", error=str(error))
                await self._changed.wait()

    async def keep(self) -> None:
        """Create, renew and announce certificates until cancelled. Only the leader calls this."""
        await self._secret.wait_synced()
        while True:
            wait = _CHECK_INTERVAL
            self._recheck.clear()
            try:
                await self._renew()
            except (AlreadyExists, Conflict):
                wait = 0.5  # another replica was first; the informer will show its certificates
            except ApiError as error:
                hint = {}
                if isinstance(error, Forbidden) and not self._version():
                    hint["next"] = f"run helm upgrade, which creates Secret {self.namespace}/{self.name}"
                self._log.warning("certificates not renewed yet", error=str(error), **hint)
                wait = _RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._recheck.wait()

    def recheck(self) -> None:
        """Check the certificates again now, because the Secret or a configuration changed."""
        self._recheck.set()
        self._changed.set()

    async def _renew(self) -> None:
        if self._is_behind():
            return
        current = self._held()
        fresh = renewed(current, self.hosts, now=self.now())
        if fresh is None:
            assert current is not None
            self._seen = current
            await self.announce(current.bundle)
            return
        before = current or self._seen
        if current is None and before is not None:
            # The Secret was deleted. The certificate from it is still served and must stay trusted.
            fresh = replace(fresh, bundle=fresh.bundle + before.ca.certificate)
        if before is not None and fresh.bundle != before.bundle:
            await self.announce(fresh.bundle)
            await asyncio.sleep(_ANNOUNCE_WAIT)
        await self._write(fresh)
        await self.announce(fresh.bundle)
        self._log.info(
            "serving certificate created",
            secret=f"{self.namespace}/{self.name}",
            expires=expiry(fresh.serving.certificate).isoformat(),
        )

    def _is_behind(self) -> bool:
        """Report whether the cache does not show our last write yet and so must not be used to decide."""
        if self._written is None:
            return False
        version, at = self._written
        if version != self._version() or asyncio.get_running_loop().time() - at > _CACHE_DELAY:
            self._written = None
        return self._written is not None

    def _version(self) -> str:
        cached = self._cached
        return cached.resource_version if cached is not None else ""

    async def _write(self, fresh: Certificates) -> None:
        cached, version = self._cached, self._version()
        if cached is None:
            metadata = {"name": self.name, "namespace": self.namespace}
            body = {"metadata": metadata, "type": "Opaque", "data": fresh.data()}
            await self.client.create(resources.SECRETS, body, namespace=self.namespace)
        else:
            await self.client.update(resources.SECRETS, {**cached.to_dict(), "data": fresh.data()})
        self._written = (version, asyncio.get_running_loop().time())

    def _held(self) -> Certificates | None:
        cached = self._cached
        return read(cached.field("data")) if cached is not None else None

    @property
    def _cached(self) -> Object | None:
        return self._secret.store.get(f"{self.namespace}/{self.name}")


def _serving(ca: KeyPair, hosts: Sequence[str], now: datetime) -> KeyPair:
    return sign(ca, "virtual-node-webhook", hosts=hosts, validity=SERVING_VALIDITY, now=now)
