"""Handles a new connection before aiohttp does: limits, TLS, and the first request head.

The first head of a connection is read here for two reasons. First, a connection uses little memory before it
has sent a request; `Connections` closes those that send none. Second, aiohttp knows only one upgrade,
WebSocket. It would parse the bytes after the head of another upgrade, such as SPDY/3.1, as the next request,
and the handler that takes over the connection would not get them. So aiohttp gets only the head of a stream,
and the rest is kept for the handler.

Where callers must be authorized (`Gate`, ``hold``), the bytes after the first head are kept here, too, until
a request was authorized (`Peer.trust`), so that an unknown client can send only one request head. After that,
aiohttp gets the connection.

A stream requested on a connection after an ordinary request works too, except for bytes sent before the 101.
Kubernetes clients send none.

TLS is started here and not by the event loop's listener, for three reasons. The context is requested for
every connection, so rotated certificates *and client CAs* apply at once. The socket transport under TLS stays
accessible, which a stream needs to know when its last byte was sent. And a connection that does not finish
its handshake is subject to the same limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from controller_runtime.serving.connections import Connections, Peer
from controller_runtime.serving.raw_connection import Connection, start_tls, tune_socket

MAX_EARLY = 16 * 1024
"""Maximum bytes kept after a client's first request head; above this, reading is paused."""

_END_OF_HEAD = b"\r\n\r\n"

ContextSource = Callable[[], ssl.SSLContext | None]


class HttpHandler(web.RequestHandler):
    """aiohttp's protocol of one connection; informs `Connections` when the connection ends."""

    __slots__ = ("peer",)

    def __init__(self, server: web.Server, peer: Peer, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.peer = peer

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection from `Connections`."""
        super().connection_lost(exc)
        self.peer.owner.close(self.peer)


def peer_of(request: web.BaseRequest) -> Peer | None:
    """Return the connection of a request; None if aiohttp accepted it itself."""
    protocol = request.protocol
    return protocol.peer if isinstance(protocol, HttpHandler) else None


@web.middleware
async def count_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Record in `Connections` which connections have a current request; a server's outermost middleware."""
    peer = peer_of(request)
    with contextlib.nullcontext() if peer is None else peer.request():
        return await handler(request)


@dataclass(eq=False)
class Gate:
    """Creates the protocol of every accepted connection.

    Args:
        server: aiohttp's server.
        context: Returns the TLS context for a new connection; None for plain HTTP.
        connections: The limits.
        options: Arguments of aiohttp's protocol.
        hold: Whether aiohttp gets only the first request head of a peer until the peer is trusted.
        stream: Matches the head of a request whose handler takes over the connection.
    """

    server: web.Server
    context: ContextSource
    _: KW_ONLY
    connections: Connections
    options: Mapping[str, Any]
    hold: bool = False
    stream: re.Pattern[bytes] | None = None
    handshakes: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    fronts: set[Front] = field(default_factory=set, init=False)

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a connection that is about to be accepted."""
        return Accepted(self)

    async def close(self) -> None:
        """Close the connections that have not sent a request head."""
        for task in tuple(self.handshakes):
            task.cancel()
        await asyncio.gather(*self.handshakes, return_exceptions=True)
        for front in tuple(self.fronts):
            front.abort()


class Accepted(asyncio.Protocol):
    """A new connection: holds data back until TLS is established."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start TLS if it is configured."""
        assert isinstance(transport, asyncio.Transport)
        tune_socket(transport)
        peer = self._gate.connections.open(transport, transport.abort)
        front = Front(self._gate, peer)
        context = self._gate.context()
        if context is None:
            transport.set_protocol(front)
            front.begin(Connection(transport, transport))
            return
        # Without this, the client's hello would reach this protocol instead of TLS.
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._start_tls(front, transport, context))
        self._gate.handshakes.add(task)
        task.add_done_callback(self._gate.handshakes.discard)

    async def _start_tls(self, front: Front, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        limit = self._gate.connections.limits.first_request
        try:
            transport = await start_tls(raw, front, context, server_side=True, ssl_handshake_timeout=limit)
        except BaseException as error:
            front.connection_lost(None)
            # Failed handshakes are caused by clients (port scans, wrong CAs, plain HTTP) and are not logged.
            if not isinstance(error, OSError):
                raise
        else:
            front.begin(Connection(transport, raw))


class Front(asyncio.Protocol):
    """Reads the first request head, then passes the connection, or at first only the head, to aiohttp."""

    def __init__(self, gate: Gate, peer: Peer) -> None:
        self._gate = gate
        self._peer = peer
        self._held = bytearray()
        self._searched = 0
        self._connection: Connection | None = None
        self._handler: asyncio.Protocol | None = None
        self._lost = False

    def begin(self, connection: Connection) -> None:
        """Start reading requests. The connection's first bytes, or its end, may have arrived already."""
        if self._lost:
            return
        self._connection = connection
        self._peer.is_verified = bool(connection.transport.get_extra_info("peercert"))
        self._gate.fronts.add(self)
        self._look()

    def abort(self) -> None:
        """Abort the connection."""
        if self._connection is not None:
            self._connection.transport.abort()

    def detach(self) -> tuple[Connection, bytes]:
        """Pause reading and return the connection, for the handler of a stream.

        Returns:
            The connection and the bytes that the client sent after its request head.
        """
        assert self._connection is not None
        self._connection.transport.pause_reading()
        early, self._held = bytes(self._held), bytearray()
        return self._connection, early

    def data_received(self, data: bytes) -> None:
        """Collect the head, or the bytes after it."""
        self._held += data
        if self._handler is None:
            self._look()
        elif len(self._held) > MAX_EARLY and self._connection is not None:
            self._connection.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Inform aiohttp if it has got a request head; aiohttp then cancels the request's handler."""
        self._lost = True
        self._gate.fronts.discard(self)
        self._peer.owner.close(self._peer)
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Forward to aiohttp."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Forward to aiohttp."""
        if self._handler is not None:
            self._handler.resume_writing()

    def _look(self) -> None:
        if self._connection is None:
            return
        transport = self._connection.transport
        limits = self._gate.connections.limits
        longest = limits.verified_head_bytes if self._peer.is_verified else limits.head_bytes
        length = self._held.find(_END_OF_HEAD, self._searched)
        if length > longest or (length < 0 and len(self._held) > longest):
            self._gate.fronts.discard(self)
            transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n")
            transport.close()
            return
        self._peer.hold(len(self._held))
        if length < 0:
            self._searched = max(0, len(self._held) - len(_END_OF_HEAD) + 1)
            return
        self._gate.fronts.discard(self)
        self._pass_on(length + len(_END_OF_HEAD))

    def _pass_on(self, length: int) -> None:
        """Pass the head of this length to aiohttp, and the following bytes unless they are kept here."""
        assert self._connection is not None
        head, self._held = bytes(self._held[:length]), self._held[length:]
        self._handler = HttpHandler(self._gate.server, self._peer, **self._gate.options)
        self._handler.connection_made(self._connection.transport)
        self._handler.data_received(head)
        if self._gate.stream is not None and self._gate.stream.match(head):
            return
        if self._gate.hold:
            self._peer.on_trusted = self._hand_over
        else:
            self._peer.hold(0)
            self._hand_over()

    def _hand_over(self) -> None:
        """Pass the connection to aiohttp permanently."""
        if self._lost:
            return
        assert self._connection is not None
        assert self._handler is not None
        transport = self._connection.transport
        transport.set_protocol(self._handler)
        rest, self._held = bytes(self._held), bytearray()
        if rest:
            self._handler.data_received(rest)
        if len(rest) > MAX_EARLY:
            transport.resume_reading()
