"""Kept-alive connections to one API server: a pool per client identity."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler

from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.client.response_handler import CpuMeter, MeteredResponseHandler
from controller_runtime.errors import ConnectionFailed
from controller_runtime.serving.raw_connection import keep_alive

_KEEPALIVE = 45.0
"""Seconds an idle connection is kept: less than the 60 s of many load balancers and the 90 s of an API
server."""
_DNS_CACHE = 30
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_BUFFER = 2**16
"""Bytes read ahead per connection. Small, because a server may fill a hundred connections at once."""


class ConnectionPool:
    """An aiohttp session. Entering it as a context manager counts one use.

    A TLS connection keeps the client certificate that it was made with. When the certificate changes, the
    pool is retired: it closes after its last use, so that current watches are not cut off.

    Attributes:
        context: the TLS context of the connections.
        session: the aiohttp session to send requests with.
        options: arguments for every request.
        closed: True if requests are no longer possible.
        served_certificate: the server's certificate (DER) from the newest connection; None: no TLS, or not
            connected yet.
    """

    def __init__(self, config: ConnectionConfig, headers: Mapping[str, str], *, meter: CpuMeter) -> None:
        """Create a pool for the current TLS context; connections open on first use."""
        self.context = config.ssl
        self.closed = False
        self.served_certificate: bytes | None = None
        self.options: dict[str, Any] = {"allow_redirects": False}
        if config.proxy_url:
            self.options["proxy"] = config.proxy_url
        if config.tls_server_name:
            self.options["server_hostname"] = config.tls_server_name
        self._users = 0
        self._retired = False
        self._closing: asyncio.Future[None] | None = None
        connector = _NewestFirst(
            # A watch holds a connection for its lifetime. Callers limit the number of concurrent requests.
            limit=0,
            ssl=config.ssl if config.ssl is not None else True,
            keepalive_timeout=_KEEPALIVE,
            ttl_dns_cache=_DNS_CACHE,
            socket_factory=_socket,
        )
        # aiohttp has no public option for a custom protocol; a test checks that this attribute works.
        handler: Callable[..., ResponseHandler] = partial(
            MeteredResponseHandler, meter=meter, connected=self._note_certificate
        )
        connector._factory = partial(handler, loop=asyncio.get_running_loop())  # noqa: SLF001
        self.session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), headers=headers, read_bufsize=_BUFFER
        )
        # aiohttp would repeat PUT and DELETE on a broken connection, and a repeated PUT causes a false
        # conflict.
        self.session._retry_connection = False  # noqa: SLF001 - no public switch; a test guards it

    def __enter__(self) -> Self:
        self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if self._retired and not self._users:
            self._close_soon()

    def retire(self) -> None:
        """Close the pool as soon as it is no longer used."""
        self._retired = True
        if not self._users:
            self._close_soon()

    async def close(self) -> None:
        """Close now; current requests fail."""
        self.closed = True
        await self.session.close()

    def _note_certificate(self, connection: asyncio.BaseTransport) -> None:
        secured = connection.get_extra_info("ssl_object")
        if secured is not None:
            self.served_certificate = secured.getpeercert(binary_form=True)

    def _close_soon(self) -> None:
        if not self.closed:
            self.closed = True
            self._closing = asyncio.ensure_future(self.session.close())


class _NewestFirst(aiohttp.TCPConnector):
    """Reuses the connection that has been idle for the shortest time, as Go's transport does.

    aiohttp reuses the one that has been idle for the longest time. So all connections that a burst has opened would stay
    in use by turns, each with the buffers of TLS.
    """

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        idle = self._conns.get(key)
        if idle and idle[-1][0] is protocol:
            idle.rotate(1)


class ConnectionPools:
    """The pool of the current client identity, and retired ones that finish their current requests."""

    def __init__(self, config: ConnectionConfig, headers: Mapping[str, str]) -> None:
        """Create without connections; the arguments are those of ``ConnectionPool``."""
        self._config = config
        self._headers = headers
        self._meter = CpuMeter()
        self._pools: list[ConnectionPool] = []
        self._closed = False

    @property
    def served_certificate(self) -> bytes | None:
        """Return the server's certificate (DER) from the newest connection; None: no TLS or not connected."""
        return self._pools[-1].served_certificate if self._pools else None

    def current(self) -> ConnectionPool:
        """Return the pool for the next request; a new one if the TLS context has changed, as with a new certificate.

        Raises:
            ConnectionFailed: the pools are closed.
        """
        if self._closed:
            raise ConnectionFailed(f"{self._config.server}: the client is closed")
        if not self._pools or self._pools[-1].context is not self._config.ssl:
            for pool in self._pools:
                pool.retire()
            self._pools = [pool for pool in self._pools if not pool.closed]
            self._pools.append(ConnectionPool(self._config, self._headers, meter=self._meter))
        return self._pools[-1]

    async def close(self) -> None:
        """Close all connections; current requests fail."""
        self._closed = True
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.close()


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket whose kernel detects a dead peer within about a minute, also during a silent watch."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    try:
        keep_alive(made, probes=3)
    except OSError:
        made.close()
        raise
    return made


def refusal(error: BaseException) -> str:
    """Return why a connection was not made, in the words of the kernel or resolver; empty for other failures."""
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
        return ""
    # asyncio replaces the kernel's text by its own, and merges the texts if a name has several addresses.
    number = _ERRNO.search(str(error.os_error))
    why = os.strerror(int(number[1])) if number else error.os_error.strerror or str(error.os_error)
    return f"cannot connect: {why[:1].lower()}{why[1:]}"
