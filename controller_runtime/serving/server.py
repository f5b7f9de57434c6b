"""HTTP(S) server of a daemon: Kubernetes health endpoints, Prometheus metrics, and the component's routes.

``HttpsServer`` is one listening socket with an aiohttp application. As usual in Kubernetes, ``/livez``
reports whether a restart would help, ``/readyz`` whether the process can take work, and ``/healthz`` is the
older name of ``/livez`` (``health``).
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import socket
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import prometheus_client
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from controller_runtime.errors import ConfigError
from controller_runtime.process.lifecycle import beside
from controller_runtime.process.listening import bind, parse_address
from controller_runtime.process.program import version
from controller_runtime.serving.connections import (
    ByteBudget,
    ConnectionLimits,
    Connections,
    Gate,
    count_requests,
    peer_of,
)
from controller_runtime.serving.health import Check, HealthChecks, MetricsPage, Registry, of_this_process
from controller_runtime.tls.reloader import CertificateReloader, common_name

RETRY_AFTER = {"Retry-After": "1"}
"""client-go repeats a request that is answered 429 or 5xx with this header until its own timeout."""
__all__ = ["Check", "HealthChecks", "HealthServer", "HttpsServer"]
_BACKLOG = 128
"""Maximum connections that wait to be accepted; asyncio accepts up to this number in one pass of its loop."""
_BODIES = 4
"""Number of bodies of maximum size that may be in memory at once; smaller bodies may be more."""
_BODY_SECONDS = 10.0
"""Seconds to receive a body."""
_OPTIONS = {
    "access_log": None,
    # Seconds for which aiohttp reads the rest of a body that the handler did not read.
    "lingering_time": 1.0,
    # Kubernetes compresses no requests, and a small compressed body could become a large one.
    "auto_decompress": False,
}
"""Arguments of aiohttp's protocol."""
_NO_CERTIFICATE = "a client certificate is required"
_OPEN = ("/healthz", "/livez", "/readyz", "/metrics")
"""Path prefixes that need no certificate."""


class Bodies:
    """Reads the bodies of one server's requests and writes answers.

    Args:
        max_bytes: Largest body of a request.
        total_bytes: Maximum bytes of all bodies that are being read or written; above this, the oldest
            transfer is dropped.
        seconds: Seconds within which a body must be received, or an answer must be read by the client.
    """

    def __init__(self, *, max_bytes: int, total_bytes: int, seconds: float) -> None:
        self.max_bytes = max_bytes
        self._seconds = seconds
        self._budget: ByteBudget[_Transfer] = ByteBudget(total_bytes, drop=_Transfer.drop)

    @property
    def held(self) -> int:
        """Return the bytes of all bodies that are being read or written."""
        return self._budget.held

    async def read(self, request: web.Request) -> bytes:
        """Return a request's body.

        Raises:
            HTTPException: The body is too large (413), too slow (408), incomplete (400), or exceeds the
                memory limit (503); the text names the reason.
        """
        if (request.content_length or 0) > self.max_bytes:
            raise self._too_large()
        body = bytearray()
        reading = _Transfer(asyncio.timeout(self._seconds))
        try:
            async with reading.deadline:
                while chunk := await request.content.readany():
                    body += chunk
                    if len(body) > self.max_bytes:
                        raise self._too_large()
                    self._budget.set(reading, len(body))
                    if reading.is_dropped:
                        raise TimeoutError
        except TimeoutError:
            if reading.is_dropped:
                raise web.HTTPServiceUnavailable(
                    text="too many request bodies at once\n", headers=RETRY_AFTER
                ) from None
            raise web.HTTPRequestTimeout(
                text=f"the body was not received within {self._seconds:g} s\n"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionResetError):
            raise web.HTTPBadRequest(text="the body ended early\n") from None
        finally:
            self._budget.set(reading, 0)
        return bytes(body)

    async def write(self, request: web.Request, answer: web.Response) -> web.Response:
        """Write an answer and return it; close the connection of a client that does not read it in time.

        Without the limit, aiohttp would keep the complete answer in memory while the client is connected.
        """
        writing = _Transfer(asyncio.timeout(self._seconds))
        try:
            async with writing.deadline:
                self._budget.set(writing, len(answer.body) if isinstance(answer.body, bytes) else 0)
                await answer.prepare(request)
                await answer.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._budget.set(writing, 0)
        return answer

    def _too_large(self) -> web.HTTPException:
        return web.HTTPRequestEntityTooLarge(
            max_size=self.max_bytes, actual_size=0, text=f"the body is longer than {self.max_bytes} bytes\n"
        )


@dataclass(slots=True, eq=False)
class _Transfer:
    deadline: asyncio.Timeout
    is_dropped: bool = False

    def drop(self) -> None:
        """Stop the transfer: its deadline expires now."""
        self.is_dropped = True
        self.deadline.reschedule(asyncio.get_running_loop().time())


# Without this, each counter and histogram has an unused series with its creation time: a third more series.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
# The value is always 1, as usual for Prometheus. The component and the replica are labels of the scrape.
prometheus_client.Gauge(
    "virtual_node_build_info",
    "Always 1; the labels are the running version and its Python version.",
    ["version", "python"],
).labels(version() or "unknown", platform.python_version()).set(1)


class HttpsServer:
    """An HTTP or HTTPS server; an async context manager, or use ``start`` and ``stop``.

    Args:
        host: address to bind; "" and "::" mean all IPv4 and IPv6 addresses of the machine.
        port: TCP port; 0: a free port, see ``port`` after ``start``.
        tls: certificates to serve. With a client CA, clients without its certificate are refused, except for
            health and metrics. A reloader's ``run`` is started with the server. None: plain HTTP.
        client_names: common names allowed in a client certificate; empty: any.
        middlewares: applied to every handler, including the health endpoints; the first is the outermost.
        health: whether to serve ``/healthz``, ``/livez`` and ``/readyz``.
        metrics: whether to serve ``/metrics``.
        registry: returns the metrics to serve.
        shutdown_timeout: seconds that current requests may take to finish when the server stops.
        max_body_bytes: largest request body that is read.
        limits: limits of the server's connections; None: 512 connections, with a client CA 128 of them from
            clients that have not been authorized.
        name: label of the metrics of the server's connections.
        setting: the flag or field with the address, for the error if binding fails.
        listener: a bound socket to use instead of the address; None: the address is bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: CertificateReloader | ssl.SSLContext | None = None,
        client_names: Collection[str] = (),
        middlewares: Sequence[Middleware] = (),
        health: bool = True,
        metrics: bool = True,
        registry: Registry = of_this_process,
        shutdown_timeout: float = 5.0,
        max_body_bytes: int = 8 * 1024**2,
        limits: ConnectionLimits | None = None,
        name: str = "http",
        setting: str = "",
        listener: socket.socket | None = None,
    ) -> None:
        if isinstance(tls, CertificateReloader) and tls.verifies_clients:
            middlewares = (_certificate_required(client_names), *middlewares)
        self.app = web.Application(middlewares=(count_requests, *middlewares), client_max_size=max_body_bytes)
        self.bodies = Bodies(
            max_bytes=max_body_bytes, total_bytes=_BODIES * max_body_bytes, seconds=_BODY_SECONDS
        )
        strangers = 128 if isinstance(tls, CertificateReloader) and tls.verifies_clients else 512
        self._connections = Connections(name, limits or ConnectionLimits(strangers=strangers))
        self._host = host
        self._wanted_port = port
        self._setting = setting
        self._bound = listener
        self._tls = tls
        self._shutdown_timeout = shutdown_timeout
        self._running = contextlib.AsyncExitStack()
        """Closes what ``start`` has opened."""
        self.port = 0
        """The bound port; 0 before ``start``."""
        self._stopping = False
        self.health = HealthChecks()
        self.health.add("shutdown", lambda: "shutting down" if self._stopping else None)
        if health:
            self.health.add_routes(self.app)
        if metrics:
            self.add_route("GET", "/metrics", MetricsPage(registry).get)

    def add_route(self, method: str, path: str, handler: Handler) -> None:
        """Add a handler for a path; method ``*`` means every method. Call before ``start``."""
        self.app.router.add_route(method, path, handler)

    async def start(self) -> None:
        """Bind and serve; if that fails or is cancelled, close everything.

        Raises:
            OSError: the address cannot be bound; ``strerror`` is a sentence that names it.
            ConfigError: the same, for a server with a ``setting``, which the user must change.
        """
        try:
            sock = self._bound or bind(self._host, self._wanted_port)
        except OSError as error:
            if self._setting:
                raise ConfigError(f"{self._setting}: {error.strerror}") from None
            raise
        self.port = sock.getsockname()[1]
        try:
            await self._serve(sock)
        except BaseException:
            self.port = 0
            await self.stop()
            raise

    async def _serve(self, sock: socket.socket) -> None:
        self._running.callback(sock.close)
        # ``handler_cancellation``: streaming handlers (logs -f) end when their client disconnects, instead of
        # hours later.
        runner = web.AppRunner(
            self.app,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=self._shutdown_timeout,
        )
        self._running.push_async_callback(runner.cleanup)
        await runner.setup()
        assert runner.server is not None
        context = self._tls.context if isinstance(self._tls, CertificateReloader) else self._tls
        gate = Gate(runner.server, lambda: context, connections=self._connections, options=_OPTIONS)
        self._running.push_async_callback(gate.close)
        if isinstance(self._tls, CertificateReloader):
            await self._running.enter_async_context(beside(self._tls.run()))
        # aiohttp's SockSite is not used: if its start is cancelled, it leaves a socket that the loop keeps
        # polling.
        listener = await asyncio.get_running_loop().create_server(
            gate, sock=sock, backlog=_BACKLOG, start_serving=False
        )
        self._running.callback(listener.close)
        await listener.start_serving()

    async def announce_shutdown(self, seconds: float) -> None:
        """Fail readiness and keep serving for some seconds, because clients notice the shutdown late."""
        self._stopping = True
        if seconds:
            await asyncio.sleep(seconds)

    async def stop(self) -> None:
        """Fail readiness, stop listening, wait up to ``shutdown_timeout`` seconds for requests, and close."""
        self._stopping = True
        await self._running.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _certificate_required(names: Collection[str]) -> Middleware:
    """Return a middleware that requires a verified client certificate, except for health and metrics."""

    @web.middleware
    async def required(request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        if certificate and (not names or common_name(certificate) in names):
            if (peer := peer_of(request)) is not None:
                peer.trust()
            return await handler(request)
        # Kubelet probes and metric scrapers have no certificate.
        if request.method == "GET" and request.path.startswith(_OPEN):
            return await handler(request)
        text = "the client certificate's name is not one of those allowed" if certificate else _NO_CERTIFICATE
        response = web.Response(status=401, text=text + "\n")
        response.force_close()
        return response

    return required


class HealthServer(HttpsServer):
    """Serves health and metrics over plain HTTP, at ``host:port`` (``:8080`` and ``[::1]:8080`` are valid).

    Args:
        address: ``host:port``.
        checks: checks of readiness.
        setting: as for ``HttpsServer``.
        options: other arguments of ``HttpsServer``.

    Raises:
        ConfigError: the address is invalid.
    """

    def __init__(
        self,
        address: str,
        *,
        checks: Mapping[str, Check] | None = None,
        setting: str = "--health-addr",
        **options: Any,
    ) -> None:
        limits = ConnectionLimits(total=128, strangers=128)
        super().__init__(*parse_address(address), limits=limits, name="health", setting=setting, **options)
        for name, check in (checks or {}).items():
            self.health.add(name, check)
