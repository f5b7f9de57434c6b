"""Certificates that a server keeps itself: CAs and a serving pair, stored in a Secret.

Every replica reads the Secret once a minute, serves its certificate, and renews it when a third of its validity is
left. A write carries the resourceVersion that was read, so if several replicas write, the first one wins and the others
use its certificates. Certificates that another replica renewed early, because its clock is ahead, stay in use.

A new CA is made when a third of the old CA's ten years is left. From then on clients must trust both. The old CA signs
serving certificates until a twelfth is left, so clients have two and a half years to read the new CA.
"""

from __future__ import annotations

import asyncio
import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller_runtime import log, resources
from controller_runtime.errors import AlreadyExists, ApiError, ConfigError, Conflict, Forbidden, NotFound
from controller_runtime.tls.key_pairs import covers, is_issued_by, make_ca, share_left, sign
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import server_context
from controller_runtime.util import event_loop

CA_VALIDITY = timedelta(days=3650)
SERVING_VALIDITY = timedelta(days=90)
_RENEW_SHARE = 1 / 3
"""Share of a certificate's validity that is left when it is renewed."""
_LAST_SHARE = 1 / 12
"""Share of a CA's validity that is left when the next CA starts to sign."""
_INTERVAL = 60.0
"""Seconds between checks of the Secret."""
_RETRY = 5.0
_RETRY_CONFLICT = 0.5
"""Seconds after which a Secret that another replica wrote is read again."""
_KEY = re.compile(rb"-----BEGIN [^-]+-----.+?-----END [^-]+-----\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The CAs and the serving key pair that the replicas of a program share in a Secret."""

    authorities: tuple[KeyPair, ...]
    """The CA, then earlier CAs that are still trusted, newest first. An earlier CA can have an empty key; it signs no more."""
    serving: KeyPair

    @property
    def bundle(self) -> bytes:
        """Return the PEM of all trusted CAs."""
        return b"".join(ca.certificate for ca in self.authorities)

    @property
    def signer(self) -> bytes:
        """Return the PEM of the CA that issued the serving certificate; empty if it is not trusted any more."""
        issuers = (ca.certificate for ca in self.authorities)
        return next((ca for ca in issuers if is_issued_by(self.serving.certificate, ca)), b"")

    def data(self) -> dict[str, str]:
        """Return the ``data`` of the Secret."""
        return encode(
            {
                "ca.crt": self.bundle,
                "ca.key": b"".join(ca.key for ca in self.authorities),
                "tls.crt": self.serving.certificate,
                "tls.key": self.serving.key,
            }
        )


def read(data: Mapping[str, Any] | None) -> Certificates | None:
    """Parse a Secret's data; None if a part is missing or invalid, or a key does not match its certificate."""
    parts = decode(data, "ca.crt", "ca.key", "tls.crt", "tls.key")
    if parts is None:
        return None
    try:
        trusted = [
            certificate.public_bytes(Encoding.PEM)
            for certificate in x509.load_pem_x509_certificates(parts["ca.crt"])
        ]
        keys = _KEY.findall(parts["ca.key"])
        signers = [KeyPair(*pair) for pair in zip(trusted, keys, strict=False)]
        serving = KeyPair(parts["tls.crt"], parts["tls.key"])
        for pair in (*signers, serving):
            server_context(pair)
    except (ValueError, ConfigError):
        return None
    if not signers or len(keys) > len(trusted):
        return None
    # Earlier releases of the webhook stored only the key of the newest CA.
    return Certificates((*signers, *(KeyPair(ca, b"") for ca in trusted[len(keys) :])), serving)


def renewed(current: Certificates | None, name: str, hosts: Sequence[str], *, now: datetime) -> Certificates:
    """Return the certificates with new ones in place of those that must be replaced; equal to ``current`` if none must.

    Args:
        current: content of the Secret; None: no Secret, or invalid content.
        name: common name of the serving certificate, and with ``-ca`` of the CA.
        hosts: names and addresses at which clients may call the server.
        now: wall clock, timezone-aware.
    """
    known = current.authorities if current is not None else ()
    authorities = tuple(ca for ca in known if share_left(ca.certificate, now) > 0)
    if (
        not authorities
        or not authorities[0].key
        or share_left(authorities[0].certificate, now) < _RENEW_SHARE
    ):
        authorities = (make_ca(f"{name}-ca", validity=CA_VALIDITY, now=now), *authorities)
    lasting = (ca for ca in reversed(authorities) if ca.key and share_left(ca.certificate, now) > _LAST_SHARE)
    signer = next(lasting, authorities[0])
    serving = current.serving if current is not None else None
    if (
        serving is None
        or share_left(serving.certificate, now) < _RENEW_SHARE
        or not covers(serving.certificate, hosts)
        or not is_issued_by(serving.certificate, signer.certificate)
    ):
        serving = sign(signer, name, hosts=hosts, validity=SERVING_VALIDITY, now=now)
    return Certificates(authorities, serving)


@dataclass(eq=False, repr=False, kw_only=True)
class CertificateKeeper(ABC):
    """Keeps the certificates in the Secret. A subclass serves them and passes the CAs to the clients."""

    name: ClassVar[str]
    """Common name of the serving certificate."""
    restores: ClassVar[bool]
    """Whether a deleted Secret is restored, for clients that read the CA only at their start. Otherwise it gets a new CA, and
    the previous CA stays trusted."""

    client: resources.ObjectClient
    namespace: str
    secret: str
    """Name of the Secret."""
    hosts: Sequence[str]
    """Names and addresses at which clients may call the server."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        self._last: Certificates | None = None
        self._error = "the Secret with the certificates has not been read yet"
        self._recheck = asyncio.Event()
        self._log = log.get_logger(component="certificates")

    @abstractmethod
    async def use(self, certificates: Certificates) -> None:
        """Serve the certificates; called at each check of the Secret, also if they are unchanged."""

    def unready(self) -> str | None:
        """Return why clients cannot call the server yet; None if they can."""
        return self._error or None

    def recheck(self) -> None:
        """Check the Secret again now."""
        self._recheck.set()

    async def run(self) -> None:
        """Check the Secret until cancelled."""
        while True:
            wait = _INTERVAL
            self._recheck.clear()
            try:
                await self.check()
            except (AlreadyExists, Conflict):
                wait = _RETRY_CONFLICT
            except ApiError as error:
                wait = _RETRY
                self._fail(error)
            await event_loop.wait(self._recheck, wait)

    async def check(self) -> None:
        """Read the Secret once, write what is missing or due for renewal, and call ``use``.

        Raises:
            ApiError: a request failed; `Conflict` or `AlreadyExists` if another replica wrote first.
        """
        stored = await self.read_secret(self.secret)
        valid, last = read(stored.get("data")), self._last
        if last is not None and not self.restores:
            last = replace(last, authorities=tuple(replace(ca, key=b"") for ca in last.authorities))
        fresh = renewed(valid or last, self.name, self.hosts, now=self.now())
        if fresh != valid:
            await self.write_secret(stored, fresh.data())
        self._last = fresh
        await self.use(fresh)
        self._error = ""

    async def read_secret(self, name: str) -> dict[str, Any]:
        """Return a Secret; without a resourceVersion if it does not exist."""
        try:
            return await self.client.get(resources.SECRETS, name, namespace=self.namespace)
        except NotFound:
            return {"metadata": {"name": name, "namespace": self.namespace}, "type": "Opaque"}

    async def write_secret(self, secret: Mapping[str, Any], data: Mapping[str, str]) -> None:
        """Write data into a Secret that `read_secret` returned, or create it; other keys of the Secret stay.

        Raises:
            ApiError: a request failed; `Conflict` or `AlreadyExists` if the Secret has changed since it was read.
        """
        body = {**secret, "data": {**(secret.get("data") or {}), **data}}
        if secret["metadata"].get("resourceVersion"):
            await self.client.update(resources.SECRETS, body)
        else:
            await self.client.create(resources.SECRETS, body, namespace=self.namespace)
        self._log.info("certificates written", secret=f"{self.namespace}/{secret['metadata']['name']}")

    def _fail(self, error: ApiError) -> None:
        text = str(error)
        if isinstance(error, Forbidden):
            text += f". Run helm upgrade, which creates Secret {self.namespace}/{self.secret} and the rights"
        if not self._error:
            self._log.warning("certificates not renewed yet", error=text)
            return
        if text != self._error:
            self._log.error("certificates not created yet", error=text)
        self._error = text


def encode(parts: Mapping[str, bytes]) -> dict[str, str]:
    """Return the ``data`` of a Secret with these parts."""
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def decode(data: Mapping[str, Any] | None, *names: str) -> dict[str, bytes] | None:
    """Return parts of a Secret's ``data``; None if one is missing or is not base64."""
    try:
        return {name: base64.b64decode((data or {})[name]) for name in names}
    except (KeyError, ValueError, TypeError):
        return None
