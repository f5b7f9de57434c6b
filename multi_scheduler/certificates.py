"""Certificates of the extender and of kube-scheduler, which the multi-scheduler makes itself, for mutual TLS.

The extender's Secret has the CA with its key and the serving certificate. The scheduler's Secret has its client
certificate and the CA certificates. The CA signs nothing else, so every client certificate from it is the scheduler's.

kube-scheduler reads its files once, at start. So its client certificate is valid as long as the CA, and a Secret that
is deleted gets the same certificates again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import is_issued_by, make_ca, self_signed, sign
from controller_runtime.tls.own_certificates import (
    CA_VALIDITY,
    CertificateKeeper,
    Certificates,
    decode,
    encode,
)
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import CertificateReloader, server_context

ClientParts = Mapping[str, bytes]
"""Content of the scheduler's Secret: ``ca.crt`` (the CAs that the extender may serve with), ``tls.crt``, ``tls.key``."""


@dataclass(eq=False, repr=False, kw_only=True)
class ExtenderCertificates(CertificateKeeper):
    """Serves the extender's certificates, and keeps the scheduler's."""

    name = "virtual-node-extender"
    restores = True
    client_secret: str
    """Name of the scheduler's Secret."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Until the Secret is read, a temporary certificate is served. No client has a certificate of this CA, so every
        # call is refused.
        self.tls = CertificateReloader.from_pair(
            self_signed(self.name, hosts=self.hosts), client_ca=make_ca("nobody").certificate
        )
        self._served: Certificates | None = None
        self._scheduler: ClientParts | None = None

    async def use(self, certificates: Certificates) -> None:
        """Serve the certificates, trust clients of their CAs, and write the scheduler's Secret if it is not current.

        Raises:
            ApiError: the scheduler's Secret could not be read or written.
        """
        if certificates != self._served:
            self.tls.replace(certificates.serving)
            self.tls.trust(certificates.bundle)
            self._served = certificates
        stored = await self.read_secret(self.client_secret)
        valid = read_client(stored.get("data"))
        self._scheduler = renewed_client(valid or self._scheduler, certificates, now=self.now())
        if self._scheduler != valid:
            await self.write_secret(stored, encode(self._scheduler))


def read_client(data: Mapping[str, str] | None) -> ClientParts | None:
    """Parse the scheduler's Secret; None if a part is missing or unreadable, or the key does not match its certificate."""
    parts = decode(data, "ca.crt", "tls.crt", "tls.key")
    try:
        if parts is not None:
            server_context(KeyPair(parts["tls.crt"], parts["tls.key"]))
    except ConfigError:
        return None
    return parts


def renewed_client(current: ClientParts | None, server: Certificates, *, now: datetime) -> ClientParts:
    """Return the content of the scheduler's Secret, with a new certificate if the CAs changed."""
    newest = server.authorities[0]
    if (
        current is not None
        and current["ca.crt"] == server.bundle
        and is_issued_by(current["tls.crt"], newest.certificate)
    ):
        return current
    client = sign(newest, "virtual-node-scheduler", usage="client", validity=CA_VALIDITY, now=now)
    return {"ca.crt": server.bundle, "tls.crt": client.certificate, "tls.key": client.key}
