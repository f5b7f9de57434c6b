"""Kept-alive connections to one API server: a pool per client identity, with a limit on what a server costs.

Connections go through the kubeconfig's proxy, and are reused newest first (``Connector``).

One-byte chunks, or endless informational responses, keep the event loop busy for 1.5 s per MiB. A response of an API
server takes 1 ms per MiB. So the CPU time that a server makes us spend is limited (``CpuMeter``).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import set_exception
from aiohttp.streams import EMPTY_PAYLOAD

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.auth.proxies import is_http
from controller_runtime.client import dialing
from controller_runtime.client.requests import connect_failure
from controller_runtime.errors import ConnectionFailed
from controller_runtime.serving.raw_connection import keep_alive

PROBES = 3
"""Probes without an answer after which the kernel ends a connection: a minute in all, also during a silent watch."""
_KEEPALIVE = 45.0
"""Seconds an idle connection is kept: less than the 60 s of many load balancers and the 90 s of an API
server."""
_DNS_CACHE = 30
_BUFFER = 2**16
"""Bytes read ahead per connection. Small, because a server may fill a hundred connections at once."""
_READ = 16 * 1024
"""Bytes received at once from a connection without TLS. asyncio's 256 KiB of one-byte chunks would take 0.4
s."""
_PER_READ = 0.0002
_PER_BYTE = 1e-7
"""CPU seconds allowed for each read and each byte: a hundred times what a normal response takes."""
_PER_LOOK = 5e-6
"""CPU seconds that aiohttp spends outside of this handler for each received part of a body."""
_DEBT = 0.1
"""CPU seconds above the allowance after which the connections to a server are closed."""
_DECAY_PER_SECOND = 0.05
"""CPU seconds of the debt that are forgiven per second."""
_HEAD = 64 * 1024
"""Maximum bytes before a body: heads of informational responses and of the response. API servers send less
than 4 KiB."""


class Connector(aiohttp.TCPConnector):
    """Connects as ``dialing.connect`` if the kubeconfig has a proxy; aiohttp knows neither SOCKS nor refusals with a reason.

    It reuses the connection that has been idle for the shortest time, as Go's transport does. aiohttp reuses the one
    that has been idle for the longest time. So all connections that a burst has opened would stay in use by turns, each
    with the buffers of TLS.
    """

    def __init__(self, config: ConnectionConfig, **options: Any) -> None:
        """Create for one API server.

        Args:
            config: the server and its proxy.
            options: further options of aiohttp's connector.
        """
        super().__init__(ssl=config.ssl if config.ssl is not None else True, **options)
        self._config = config

    async def _create_connection(
        self,
        req: Any,
        traces: Any,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> ResponseHandler:
        if req.proxy or not self._config.proxy_url:
            return await super()._create_connection(req, traces, timeout)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                made = await dialing.connect(self._config)
        except TimeoutError:
            raise  # aiohttp names it
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from None
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(req.connection_key, error) from None
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from None
        keep_alive(made.raw.get_extra_info("socket"), probes=PROBES)
        protocol = self._factory()
        made.transport.set_protocol(protocol)
        protocol.connection_made(made.transport)
        made.transport.resume_reading()
        return protocol

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        idle = self._conns.get(key)
        if idle and idle[-1][0] is protocol:
            idle.rotate(1)


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
        if config.proxy_url and config.ssl is None and is_http(config.proxy_url):
            # As client-go: a request to a plain server has its whole URL, and needs no tunnel.
            self.options["proxy"] = config.proxy_url
        if config.tls_server_name:
            self.options["server_hostname"] = config.tls_server_name
        self._users = 0
        self._retired = False
        self._closing: asyncio.Future[None] | None = None
        connector = Connector(
            config,
            # A watch holds a connection for its lifetime. Callers limit the number of concurrent requests.
            limit=0,
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
        keep_alive(made, probes=PROBES)
    except OSError:
        made.close()
        raise
    return made


def refusal(error: BaseException) -> str:
    """Return why a connection was not made, in the words of the kernel or resolver; empty for other failures."""
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
        return ""
    return connect_failure(error.os_error)


class CpuMeter:
    """Measures the CPU time that the bytes of one server have cost above the allowance."""

    def __init__(self) -> None:
        self._debt = 0.0
        self._at = 0.0

    def check(self, now: float) -> None:
        """Raise if the server has exceeded its CPU time. ``now``: seconds of a monotonic clock.

        Raises:
            aiohttp.ClientPayloadError: the limit is exceeded.
        """
        self._debt = max(0.0, self._debt - (now - self._at) * _DECAY_PER_SECOND)
        self._at = now
        if self._debt > _DEBT:
            raise aiohttp.ClientPayloadError("receiving the server's responses takes too much CPU time")

    def add(self, seconds: float, size: int) -> None:
        """Count the CPU seconds of one read of ``size`` bytes; ``size`` is 0 if only earlier bytes were parsed."""
        allowed = _PER_READ + size * _PER_BYTE if size else 0.0
        self._debt = max(0.0, self._debt + seconds - allowed)


class MeteredResponseHandler(ResponseHandler):
    """Closes connections to a server whose bytes cost far more CPU time than a normal response."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        meter: CpuMeter,
        connected: Callable[[asyncio.BaseTransport], None],
    ) -> None:
        super().__init__(loop)
        self._connected = connected
        self._meter = meter
        self._outside = 0
        """Bytes received for the current request outside of a body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection and limit the size of its reads."""
        super().connection_made(transport)
        self._connected(transport)
        if hasattr(transport, "max_size"):  # asyncio's own transports; for TLS see ``lifecycle.tune_tls``
            transport.max_size = _READ

    def set_response_params(self, **params: Any) -> None:
        """Start a new response and reset its byte count."""
        self._outside = 0
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; close the connection if the server has exceeded its CPU time or ``_HEAD``."""
        try:
            self._meter.check(time.monotonic())
        except aiohttp.ClientPayloadError as error:
            self._give_up(error)
            return
        started = time.thread_time()
        super().data_received(data)
        self._meter.add(time.thread_time() - started + _PER_LOOK, len(data))
        if self._payload is None or self._payload is EMPTY_PAYLOAD:
            self._outside += len(data)
            if self._outside > _HEAD:
                self._give_up(
                    aiohttp.ClientPayloadError(f"a response has more than {_HEAD:,} bytes of headers")
                )

    def _give_up(self, error: Exception) -> None:
        if self.transport is None:
            return
        self.set_exception(error)
        if self._payload is not None:
            set_exception(self._payload, error)
        self.transport.abort()
