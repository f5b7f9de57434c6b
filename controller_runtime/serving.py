"""HTTP(S) serving of a daemon: Kubernetes' health endpoints, Prometheus metrics, and the component's own routes.

``HttpsServer`` is one listening socket around an aiohttp application. Kubernetes' conventions hold: ``/livez`` says
whether a restart would help, ``/readyz`` whether to send work here, ``/healthz`` is the older name of the first
(``health``).
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Self

import prometheus_client
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client.exposition import choose_encoder

from controller_runtime import release
from controller_runtime.certificates import CertificateReloader
from controller_runtime.errors import ConfigError
from controller_runtime.health import Check, HealthChecks

__all__ = ["Check", "HealthChecks", "HealthServer", "HttpsServer", "bind", "parse_address"]

_BACKLOG = 1024
_OPEN = ("/healthz", "/livez", "/readyz", "/metrics")
"""Paths that need no certificate."""
# Otherwise each counter and histogram comes with a second series that says since when: a third more for nobody.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
# Always 1, as Prometheus programs have it; which component and replica it is are labels of the scrape.
prometheus_client.Gauge(
    "virtual_node_build_info",
    "1; its labels are the version that runs and its Python.",
    ["version", "python"],
).labels(release.version() or "unknown", platform.python_version()).set(1)


class HttpsServer:
    """A listening HTTP or HTTPS server; an async context manager, or ``start`` and ``stop``.

    Args:
        host: address to bind; "" and "::" mean every IPv4 and IPv6 address of the machine.
        port: TCP port; 0 takes a free one, see ``port`` after ``start``.
        tls: certificates to serve. With a client CA, whoever shows no certificate of it is refused; health and
            metrics are for everybody. A reloader is followed for as long as the server runs, unless
            ``follow_certificates`` is false because somebody else does. None: plain HTTP.
        middlewares: around every handler, the health endpoints included; the first is the outermost.
        health: whether to serve ``/healthz``, ``/livez`` and ``/readyz``.
        metrics: whether to serve ``/metrics``.
        shutdown_timeout: seconds that requests under way may take to finish when the server stops.
        max_body_bytes: largest request body that is read.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: CertificateReloader | ssl.SSLContext | None = None,
        follow_certificates: bool = True,
        middlewares: Sequence[Middleware] = (),
        health: bool = True,
        metrics: bool = True,
        shutdown_timeout: float = 5.0,
        max_body_bytes: int = 8 * 1024**2,
    ) -> None:
        if isinstance(tls, CertificateReloader) and tls.verifies_clients:
            middlewares = (_certificate_required, *middlewares)
        self.app = web.Application(middlewares=middlewares, client_max_size=max_body_bytes)
        self._host = host
        self._wanted_port = port
        self._tls = tls
        self._follow = follow_certificates
        self._shutdown_timeout = shutdown_timeout
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._follower: asyncio.Task[None] | None = None
        self._port = 0
        self._stopping = False
        self.health = HealthChecks()
        self.health.add("shutdown", lambda: "shutting down" if self._stopping else None)
        if health:
            self.health.add_routes(self.app)
        if metrics:
            self.add_route("GET", "/metrics", metrics_handler)

    @property
    def port(self) -> int:
        """The port that is bound; 0 before ``start``."""
        return self._port

    def add_route(self, method: str, path: str, handler: Handler) -> None:
        """Serve a path; ``*`` stands for every method. Only before ``start``."""
        self.app.router.add_route(method, path, handler)

    def add_check(self, name: str, check: Check, *, live: bool = False) -> None:
        """Add a check to ``/readyz``; with ``live`` also to ``/livez`` and ``/healthz``.

        Liveness is for what only a restart can mend: a cluster that does not answer is no reason.
        """
        self.health.add(name, check, live=live)

    async def start(self) -> None:
        """Bind and serve; when that fails or is cancelled, nothing stays open.

        Raises:
            OSError: the address cannot be bound; ``strerror`` is a sentence that names it.
        """
        sock = bind(self._host, self._wanted_port)
        self._port = sock.getsockname()[1]
        try:
            await self._serve(sock)
        except BaseException:
            self._port = 0
            try:
                await self.stop()
            finally:
                sock.close()
            raise

    async def _serve(self, sock: socket.socket) -> None:
        # Streaming handlers (logs -f) end with their client instead of writing to nobody for hours.
        self._runner = web.AppRunner(
            self.app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=self._shutdown_timeout,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        context = self._tls.context if isinstance(self._tls, CertificateReloader) else self._tls
        # Not aiohttp's SockSite: cancelled while it starts, it forgets a socket that the loop goes on to poll.
        self._listener = await asyncio.get_running_loop().create_server(
            self._runner.server, sock=sock, ssl=context, backlog=_BACKLOG, start_serving=False
        )
        await self._listener.start_serving()
        if isinstance(self._tls, CertificateReloader) and self._follow:
            self._follower = asyncio.create_task(self._tls.run(), name="certificate reloader")

    async def announce_shutdown(self, seconds: float) -> None:
        """Fail readiness and go on serving: those who send requests here hear of our end late."""
        self._stopping = True
        if seconds:
            await asyncio.sleep(seconds)

    async def stop(self) -> None:
        """Fail readiness, stop listening, let requests finish for ``shutdown_timeout`` seconds, close."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        try:
            if self._follower is not None:
                self._follower.cancel()
                await asyncio.gather(self._follower, return_exceptions=True)
                self._follower = None
        finally:
            if self._runner is not None:
                runner, self._runner = self._runner, None
                await runner.cleanup()

    async def run(self) -> None:
        """Serve until cancelled, then stop gracefully.

        Raises:
            OSError: as ``start``.
        """
        async with self:
            await asyncio.Event().wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


@web.middleware
async def _certificate_required(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The TLS layer verifies a certificate that is shown; that one is shown is decided here, for probes show none."""
    transport = request.transport
    if (request.method == "GET" and request.path.startswith(_OPEN)) or (
        transport is not None and transport.get_extra_info("peercert")
    ):
        return await handler(request)
    return web.Response(status=403, text="a client certificate is required\n")


class HealthServer(HttpsServer):
    """Health and metrics alone, over plain HTTP, at ``host:port`` (``:8080`` and ``[::1]:8080`` work).

    Raises:
        ConfigError: the address cannot be understood.
    """

    def __init__(self, address: str, *, checks: Mapping[str, Check] | None = None) -> None:
        host, port = parse_address(address)
        super().__init__(host, port)
        for name, check in (checks or {}).items():
            self.add_check(name, check)


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``:port`` or ``[v6]:port``.

    Raises:
        ConfigError: it is none of them.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"address {address!r}: write an IPv6 address in brackets, such as [::1]:8080")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"address {address!r} is not host:port")
    return host, int(port)


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; "" and "::" are one socket for IPv4 and IPv6 where the machine has both.

    One socket instead of one per family also means that port 0 is the same port for both.

    Raises:
        OSError: with the errno of the cause and a sentence that names the address.
    """
    shown = f"{f'[{host}]' if ':' in host else host or '*'}:{port}"
    try:
        if host in {"", "::"} and socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        family, _, _, _, where = socket.getaddrinfo(
            "0.0.0.0" if host in {"", "::"} else host,  # noqa: S104 - what the caller asked for
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        return socket.create_server(where[:2], family=family)
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, f"address {shown}: {error.strerror}") from None
    except OSError as error:
        number = error.errno or errno.EIO
        said = {
            errno.EADDRINUSE: f"address {shown} is already in use",
            errno.EADDRNOTAVAIL: f"address {shown} is none of this machine's",
            errno.EACCES: f"address {shown} may not be bound by this user",
        }.get(number, f"address {shown}: {os.strerror(number)}")
        raise OSError(number, said) from None


async def metrics_handler(request: web.Request) -> web.Response:
    """Prometheus text or OpenMetrics, as the scraper asks; rendered in a thread: large pages take 50 ms."""
    encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
    body = await asyncio.to_thread(encoder, prometheus_client.REGISTRY)
    response = web.Response(body=body, headers={"Content-Type": content_type, "Vary": "Accept"})
    response.enable_compression()
    return response
