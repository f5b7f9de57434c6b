"""Certificates that the webhook looks after itself: a CA and a serving pair, kept in a Secret.

Every replica serves what the Secret holds and follows it. The leader makes what is missing and renews what has less
than a third of its life left. A new CA is announced first, beside the old one, and used afterwards, so at no moment
does the API server see a certificate that it has no CA for.
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
from controller_runtime.tls.key_pairs import covers, share_left
from controller_runtime.tls.reloader import KeyPair, expiry, make_ca, sign

CA_VALIDITY = timedelta(days=3650)
SERVING_VALIDITY = timedelta(days=90)
_RENEW_SHARE = 1 / 3
_ANNOUNCED = 3.0
"""Seconds between announcing a CA and using it: what an API server takes to hear of a changed configuration."""
_LOOK = 3600.0
"""Seconds between two looks at the clock."""
_RETRY = 5.0
_BEHIND = 60.0
"""Seconds for which a watch is believed to be merely behind what we have written."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the Secret holds."""

    ca: KeyPair
    bundle: bytes
    """PEM of every CA that may have signed what is being served."""
    serving: KeyPair

    def data(self) -> dict[str, str]:
        """The Secret's data."""
        parts = {
            "ca.crt": self.bundle,
            "ca.key": self.ca.key,
            "tls.crt": self.serving.certificate,
            "tls.key": self.serving.key,
        }
        return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def read(data: Mapping[str, Any] | None) -> Certificates | None:
    """What a Secret's data holds; None when anything is missing or cannot be read."""
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
    """What should take the place of the current certificates; None when they are good for a while yet.

    Args:
        current: as the Secret holds them.
        hosts: names and addresses that the API server may call us by.
        now: aware.
    """
    if current is None:
        ca = make_ca("virtual-node-webhook-ca", validity=CA_VALIDITY, now=now)
        return Certificates(ca, ca.certificate, _serving(ca, hosts, now))
    if share_left(current.ca.certificate, now) < _RENEW_SHARE:
        ca = make_ca("virtual-node-webhook-ca", validity=CA_VALIDITY, now=now)
        return Certificates(ca, ca.certificate + current.ca.certificate, _serving(ca, hosts, now))
    serving = current.serving.certificate
    if share_left(serving, now) < _RENEW_SHARE or not covers(serving, hosts):
        return Certificates(current.ca, current.bundle, _serving(current.ca, hosts, now))
    return None


class CertificateKeeper:
    """Serves the Secret's certificates; as leader, sees to it that they are good."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        hosts: Sequence[str],
        announce: Callable[[bytes], Awaitable[None]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Set up.

        Args:
            client: of the upper cluster.
            namespace: the Secret's.
            name: the Secret's.
            hosts: names and addresses that the API server may call us by.
            announce: has the API server trust a CA bundle.
            now: the calendar, for tests.
        """
        self._client = client
        self._namespace = namespace
        self._name = name
        self._hosts = list(hosts)
        self._announce = announce
        self._now = now
        self._secret = Informer(
            client,
            resources.SECRETS,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            name="serving-certificate",
        )
        self._seen: Certificates | None = None
        """The last ones that the Secret held: they are being served until the next ones are."""
        self._written: tuple[str, float] | None = None
        """The version that we have replaced, and when; None: the cache shows what we wrote."""
        self._changed = asyncio.Event()
        self._look_again = asyncio.Event()
        self._secret.add_handler(
            on_add=lambda _secret, _initial: self.look_again(),
            on_update=lambda _old, _new: self.look_again(),
            on_delete=lambda _secret: self.look_again(),
        )
        self._log = log.get_logger(component="certificates")

    def ca(self) -> bytes | None:
        """PEM of the CA that the Secret holds; None while it holds none."""
        held = self._held()
        return held.ca.certificate if held is not None else None

    async def follow(self, use: Callable[[KeyPair], None]) -> None:
        """Hand every new serving pair to ``use``, until cancelled."""
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
        """Make and renew certificates and keep them announced, until cancelled; for the leader."""
        await self._secret.wait_synced()
        while True:
            wait = _LOOK
            self._look_again.clear()
            try:
                await self._renew()
            except (AlreadyExists, Conflict):
                wait = 0.5  # somebody else was first; the informer shows what they made
            except ApiError as error:
                hint = {}
                if isinstance(error, Forbidden) and not self._version():
                    hint["next"] = f"helm upgrade creates Secret {self._namespace}/{self._name}; we may not"
                self._log.warning("certificates not looked after yet", error=str(error), **hint)
                wait = _RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._look_again.wait()

    def look_again(self) -> None:
        """Something that the certificates depend on may have changed."""
        self._look_again.set()
        self._changed.set()

    async def _renew(self) -> None:
        if self._is_behind():
            return
        current = self._held()
        fresh = renewed(current, self._hosts, now=self._now())
        if fresh is None:
            assert current is not None
            self._seen = current
            await self._announce(current.bundle)
            return
        before = current or self._seen
        if current is None and before is not None:
            # Somebody has deleted the Secret. Its certificate is still served, and has to be trusted meanwhile.
            fresh = replace(fresh, bundle=fresh.bundle + before.ca.certificate)
        if before is not None and fresh.bundle != before.bundle:
            await self._announce(fresh.bundle)
            await asyncio.sleep(_ANNOUNCED)
        await self._write(fresh)
        await self._announce(fresh.bundle)
        self._log.info(
            "serving certificate made",
            secret=f"{self._namespace}/{self._name}",
            expires=expiry(fresh.serving.certificate).isoformat(),
        )

    def _is_behind(self) -> bool:
        """Whether the cache does not show yet what we have written: judged by it, all would be made once more."""
        if self._written is None:
            return False
        version, at = self._written
        if version != self._version() or asyncio.get_running_loop().time() - at > _BEHIND:
            self._written = None
        return self._written is not None

    def _version(self) -> str:
        secret = self._secret.store.get(f"{self._namespace}/{self._name}")
        return secret.resource_version if secret is not None else ""

    async def _write(self, fresh: Certificates) -> None:
        existing = self._secret.store.get(f"{self._namespace}/{self._name}")
        body: dict[str, Any] = {
            "metadata": {"name": self._name, "namespace": self._namespace},
            "type": "Opaque",
            "data": fresh.data(),
        }
        if existing is None:
            await self._client.create(resources.SECRETS, body, namespace=self._namespace)
        else:
            body = {**existing.to_dict(), "data": fresh.data()}
            await self._client.update(resources.SECRETS, body)
        version = existing.resource_version if existing is not None else ""
        self._written = (version, asyncio.get_running_loop().time())

    def _held(self) -> Certificates | None:
        secret = self._secret.store.get(f"{self._namespace}/{self._name}")
        return read(secret.field("data")) if secret is not None else None


def _serving(ca: KeyPair, hosts: Sequence[str], now: datetime) -> KeyPair:
    return sign(ca, "virtual-node-webhook", hosts=hosts, validity=SERVING_VALIDITY, now=now)
