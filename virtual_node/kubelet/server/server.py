"""A virtual node's kubelet API on its own port, to which the upper apiserver connects for logs and streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from controller_runtime.log import get_logger
from controller_runtime.serving.accepting import Gate
from controller_runtime.serving.connections import ConnectionLimits, Connections
from virtual_node.kubelet.auth.authentication import Authenticator
from virtual_node.kubelet.auth.authorization import Authorizer
from virtual_node.kubelet.base.backend import Backend
from virtual_node.kubelet.server.routes import HANDLER_ARGS, MAX_HEAD, STREAM, Handler, make_app
from virtual_node.kubelet.streams.limits import StreamLimits
from virtual_node.kubelet.streams.registry import StreamRegistry

_BACKLOG = 128

_log = get_logger(component="kubelet")


def connection_limits(total: int = 1200, strangers: int = 128) -> ConnectionLimits:
    """Return the limits of connections to the kubelet API."""
    return ConnectionLimits(
        total=total, strangers=strangers, verified_head_bytes=MAX_HEAD, held_bytes=16 * MAX_HEAD
    )


class ServerCertificate(Protocol):
    """Provides the TLS context for new connections, such as `CertificateReloader`."""

    @property
    def context(self) -> ssl.SSLContext:
        """The current TLS context."""

    def is_current(self, connection: ssl.SSLObject) -> bool:
        """Report whether a connection was made with the current certificate and client CA."""


class KubeletServer:
    """Serves one virtual node's kubelet API.

    Args:
        backend: The virtual node, which finds pods and clients of the lower cluster.
        address: Address to listen on; empty: all addresses.
        port: Port to listen on; 0: any free port.
        tls: Server certificate and CA of client certificates; None: plain HTTP, for tests.
        authenticator: Authenticates requests.
        authorizer: Authorizes requests; None: every authenticated user is authorized.
        node_name: Name of the virtual node.
        stream_idle_timeout: Seconds without data after which a stream ends; by default the kubelet's 4 hours.
        answer_timeout: Maximum seconds for a lower apiserver to answer an upgrade.
        grace: Seconds that open streams have to end when the server stops.
        extra_routes: More routes with the same authentication and authorization.
        connections: Limits of connections, shared by the virtual nodes of a process.
        stream_limits: Limits of streams, shared in the same way.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        address: str,
        port: int,
        tls: ServerCertificate | None,
        authenticator: Authenticator,
        authorizer: Authorizer | None,
        node_name: str,
        stream_idle_timeout: float = 4 * 3600.0,
        answer_timeout: float = 60.0,
        grace: float = 10.0,
        extra_routes: Sequence[web.AbstractRouteDef] = (),
        connections: Connections | None = None,
        stream_limits: StreamLimits | None = None,
    ) -> None:
        self._connections = connections or Connections("kubelet", connection_limits())
        self._address = address
        self._port = port
        self._tls = tls
        self._grace = grace
        self._node_name = node_name
        self._reviewers = [reviewer for reviewer in (authenticator, authorizer) if reviewer is not None]
        self.streams = StreamRegistry(stream_limits)
        app = make_app(
            backend,
            self.streams,
            authenticator=authenticator,
            authorizer=authorizer,
            idle_timeout=stream_idle_timeout,
            answer_timeout=answer_timeout,
            extra_routes=extra_routes,
        )
        app.middlewares.insert(0, self._leave_outdated)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            shutdown_timeout=1.0,
            # If a client disconnects, its handler is cancelled, which ends a log stream and the lower
            # request.
            handler_cancellation=True,
        )
        self._gate: Gate | None = None
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The listening port. If port 0 was requested, it is known only after `start`."""
        if self._listener is not None and self._listener.sockets:
            return int(self._listener.sockets[0].getsockname()[1])
        return self._port

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: The address is not available.
        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._gate = Gate(
            server,
            lambda: None if self._tls is None else self._tls.context,
            connections=self._connections,
            options=HANDLER_ARGS,
            hold=True,
            stream=STREAM,
        )
        try:
            # Assigned before it listens, because a cancellation in between would otherwise leave the port
            # open until the process exits.
            self._listener = await asyncio.get_running_loop().create_server(
                self._gate, self._address or None, self._port, backlog=_BACKLOG, start_serving=False
            )
            await self._listener.start_serving()
        except BaseException:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            await self._runner.cleanup()
            raise
        _log.debug("kubelet API started", node=self._node_name, address=self._address, port=self.port)

    async def stop(self, *, grace: float | None = None, after: asyncio.Event | None = None) -> None:
        """Stop listening, wait for open streams to end, then cancel the remaining ones.

        Args:
            grace: Maximum seconds to wait; None: the constructor's value.
            after: ``grace`` begins when this event is set; None: now.
        """
        if self._listener is not None:
            self._listener.close()
        if self._gate is not None:
            await self._gate.close()
        if self._runner.server is not None:
            _end_kept(self._runner.server)
        ended = await self.streams.drain(self._grace if grace is None else grace, after=after)
        if ended:
            _log.info("open streams closed", node=self._node_name, streams=ended)
        await self._runner.cleanup()
        for reviewer in self._reviewers:
            await reviewer.close()
        self._listener = None

    @web.middleware
    async def _leave_outdated(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Close the connection after this response if it was made with an older certificate or client CA."""
        # Read before the handler runs, because a transport that a stream has taken over and closed has no TLS
        # information any more.
        connection = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        response = await handler(request)
        if connection is not None and self._tls is not None and not self._tls.is_current(connection):
            response.force_close()
        return response


def _end_kept(server: web.Server) -> None:
    """Close idle connections now and others after their response, so that clients connect to the next process."""
    for connection in server.connections:
        waiter = connection._waiter  # noqa: SLF001 - no public API for waiting connections; a test guards it
        waits = waiter is not None and not waiter.done()
        connection.close()  # waits until a request that has arrived is answered
        if waits:
            connection.force_close()
