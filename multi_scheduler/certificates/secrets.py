"""Content of the two Secrets with certificates for mutual TLS between kube-scheduler and the extender. No IO.

The extender's Secret has the CA with its key and the serving certificate. The scheduler's Secret has its client
certificate and the CA certificates. The CA signs nothing else, so every client certificate from it is the scheduler's.

kube-scheduler reads its files once, at start, so its client certificate is valid as long as the CA. A new CA is made
when a third of the old CA's ten years is left; from then on both are trusted. The extender serves with the old CA until
a twelfth is left, so there are two and a half years in which to restart the scheduler.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import covers, is_issued_by, share_left
from controller_runtime.tls.reloader import KeyPair, make_ca, server_context, sign

CA_VALIDITY = timedelta(days=3650)
SERVING_VALIDITY = timedelta(days=90)
_RENEW_SHARE = 1 / 3
"""Share of a certificate's validity that is left when it is renewed."""
_LAST_SHARE = 1 / 12
"""Share of a CA's validity that is left when the extender starts to serve with the next CA."""
_KEY = re.compile(rb"-----BEGIN [^-]+-----.+?-----END [^-]+-----\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServerSide:
    """Content of the extender's Secret."""

    authorities: tuple[KeyPair, ...]
    """The CA, then earlier CAs that are still trusted; newest first."""
    serving: KeyPair

    @property
    def bundle(self) -> bytes:
        """Return the PEM of all trusted CAs."""
        return b"".join(ca.certificate for ca in self.authorities)

    def data(self) -> dict[str, str]:
        """Return the ``data`` of the Secret."""
        return _encoded(
            {
                "ca.crt": self.bundle,
                "ca.key": b"".join(ca.key for ca in self.authorities),
                "tls.crt": self.serving.certificate,
                "tls.key": self.serving.key,
            }
        )


@dataclass(frozen=True, slots=True)
class ClientSide:
    """Content of the scheduler's Secret."""

    bundle: bytes
    """PEM of all CAs that the extender may serve with."""
    client: KeyPair

    def data(self) -> dict[str, str]:
        """Return the ``data`` of the Secret."""
        return _encoded(
            {"ca.crt": self.bundle, "tls.crt": self.client.certificate, "tls.key": self.client.key}
        )


def read_server(data: Mapping[str, Any] | None) -> ServerSide | None:
    """Parse the extender's Secret; None if a part is missing or unreadable, or a key does not match its certificate."""
    parts = _decoded(data, "ca.crt", "ca.key", "tls.crt", "tls.key")
    if parts is None:
        return None
    try:
        certificates = [
            one.public_bytes(Encoding.PEM) for one in x509.load_pem_x509_certificates(parts["ca.crt"])
        ]
        keys = _KEY.findall(parts["ca.key"])
        authorities = tuple(KeyPair(*pair) for pair in zip(certificates, keys, strict=True))
        found = ServerSide(authorities, KeyPair(parts["tls.crt"], parts["tls.key"]))
        for pair in (*authorities, found.serving):
            server_context(pair)
    except (ValueError, ConfigError):
        return None
    return found


def read_client(data: Mapping[str, Any] | None) -> ClientSide | None:
    """Parse the scheduler's Secret; None if a part is missing or unreadable, or the key does not match its certificate."""
    parts = _decoded(data, "ca.crt", "tls.crt", "tls.key")
    if parts is None:
        return None
    found = ClientSide(parts["ca.crt"], KeyPair(parts["tls.crt"], parts["tls.key"]))
    try:
        server_context(found.client)
    except ConfigError:
        return None
    return found


def renewed_server(current: ServerSide | None, hosts: Sequence[str], *, now: datetime) -> ServerSide:
    """Return the content of the extender's Secret with new certificates in place of those that must be replaced.

    Args:
        current: the certificates in the Secret.
        hosts: names and addresses by which the scheduler may call the extender.
        now: an aware datetime.
    """
    known = current.authorities if current is not None else ()
    authorities = tuple(ca for ca in known if share_left(ca.certificate, now) > 0)
    if not authorities or share_left(authorities[0].certificate, now) < _RENEW_SHARE:
        authorities = (make_ca("virtual-node-extender-ca", validity=CA_VALIDITY, now=now), *authorities)
    signer = next(
        (ca for ca in reversed(authorities) if share_left(ca.certificate, now) > _LAST_SHARE), authorities[0]
    )
    serving = current.serving if current is not None else None
    if (
        serving is None
        or share_left(serving.certificate, now) < _RENEW_SHARE
        or not covers(serving.certificate, hosts)
        or not is_issued_by(serving.certificate, signer.certificate)
    ):
        serving = sign(signer, "virtual-node-extender", hosts=hosts, validity=SERVING_VALIDITY, now=now)
    return ServerSide(authorities, serving)


def renewed_client(current: ClientSide | None, server: ServerSide, *, now: datetime) -> ClientSide:
    """Return the content of the scheduler's Secret, with a new certificate if the CAs changed."""
    newest = server.authorities[0]
    if (
        current is not None
        and current.bundle == server.bundle
        and is_issued_by(current.client.certificate, newest.certificate)
    ):
        return current
    client = sign(newest, "virtual-node-scheduler", usage="client", validity=CA_VALIDITY, now=now)
    return ClientSide(server.bundle, client)


def _encoded(parts: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def _decoded(data: Mapping[str, Any] | None, *names: str) -> dict[str, bytes] | None:
    try:
        return {name: base64.b64decode((data or {})[name]) for name in names}
    except (KeyError, ValueError, TypeError):
        return None
