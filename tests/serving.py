"""HTTP servers of tests, and the TLS contexts of servers and clients."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

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


@contextlib.asynccontextmanager
async def served(
    *routes: web.RouteDef, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[int]:
    """Serve on a free port of an address until the block ends; yield the port.

    Args:
        routes: paths and their handlers.
        address: of this machine.
        tls: context of the server; None: plain HTTP.
        options: further arguments of ``web.AppRunner``.
    """
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, 0, ssl_context=tls, backlog=1024).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
