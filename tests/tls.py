"""TLS contexts of the servers and clients of tests."""

from __future__ import annotations

import ssl

from controller_runtime.tls import reloader
from controller_runtime.tls.pem import KeyPair, as_file


def server_context(pair: KeyPair, *, clients: bytes | None = None) -> ssl.SSLContext:
    """Return TLS for a server; with ``clients``, a certificate of that CA is required."""
    context = reloader.server_context(pair)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.decode())
    return context


def client_context(ca: KeyPair, pair: KeyPair | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts the CA and may have a pair of its own."""
    context = ssl.create_default_context(cadata=ca.certificate.decode())
    if pair is not None:
        with as_file(pair.certificate) as certificate, as_file(pair.key) as key:
            context.load_cert_chain(certificate, key)
    return context
