"""What stands between an accepted connection and aiohttp: its limits, TLS, and the first request head.

The first head of a connection is read here for two reasons. Nothing is made for a connection, and little is kept of
it, before it has sent a request; `Connections` closes those that send none. And aiohttp knows one upgrade, WebSocket:
bytes that follow the head of any other, such as SPDY/3.1, it parses as the next request, and they are lost when a
handler takes the connection over. So aiohttp gets the head of a stream alone, and the rest is kept for whoever takes
the connection over.

Where callers have to be authorized (`Gate`, ``hold``), what follows the first head is kept here, too, until one
request was (`Peer.trust`): a stranger has one request head and no more. Then the connection is aiohttp's for good.

A stream asked for on a connection that served an ordinary request before works too, except for bytes
sent before the 101; Kubernetes' clients send none.

TLS is started here and not by the event loop's listener, for three reasons: the context in use is asked
for at every connection, so rotated certificates *and client CAs* count at once; the socket transport
below stays within reach, which a stream needs to know when its last byte has left; and a connection that
does not finish its handshake is subject to the same limits.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from controller_runtime.serving.connections import Connections, Peer
from controller_runtime.serving.raw_connection import Connection, keep_alive, start_tls

MAX_EARLY = 16 * 1024
"""Bytes kept of what a client sends behind its first request before it is answered; then its sending is held back."""

_END_OF_HEAD = b"\r\n\r\n"

ContextSource = Callable[[], ssl.SSLContext | None]


class HttpHandler(web.RequestHandler):
    """aiohttp's protocol of one connection; tells the connections' limits of its end."""

    __slots__ = ("peer",)

    def __init__(self, server: web.Server, peer: Peer, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.peer = peer

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self.peer.owner.close(self.peer)


def peer_of(request: web.BaseRequest) -> Peer | None:
    """The connection that a request came on; None where aiohttp accepted it itself."""
    protocol = request.protocol
    return protocol.peer if isinstance(protocol, HttpHandler) else None


@web.middleware
async def count_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Have `Connections` know which connections have a request under way; the outermost middleware of a server."""
    peer = peer_of(request)
    if peer is None:
        return await handler(request)
    with peer.request():
        return await handler(request)


class Gate:
    """Makes the protocol of every accepted connection.

    Args:
        server: aiohttp's server.
        context: Gives the TLS context for a new connection; None for plain HTTP.
        connections: The limits.
        options: Arguments of aiohttp's protocol.
        hold: Whether aiohttp gets nothing but a peer's first request head until the peer is trusted.
        stream: Matches the head of a request whose handler takes the connection over.
    """

    def __init__(
        self,
        server: web.Server,
        context: ContextSource,
        *,
        connections: Connections,
        options: Mapping[str, Any],
        hold: bool = False,
        stream: re.Pattern[bytes] | None = None,
    ) -> None:
        self.context = context
        self.connections = connections
        self.hold = hold
        self.stream = stream
        self.handshakes: set[asyncio.Task[None]] = set()
        self.fronts: set[Front] = set()
        self._server = server
        self._options = options

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of a connection about to be accepted."""
        return Accepted(self)

    def new_handler(self, peer: Peer) -> asyncio.Protocol:
        """Make aiohttp's protocol for a connection."""
        return HttpHandler(self._server, peer, **self._options)

    async def close(self) -> None:
        """Drop the connections that have not asked for anything."""
        for task in tuple(self.handshakes):
            task.cancel()
        await asyncio.gather(*self.handshakes, return_exceptions=True)
        for front in tuple(self.fronts):
            front.abort()


class Accepted(asyncio.Protocol):
    """A connection just accepted: holds everything back until TLS stands."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start TLS where it is configured."""
        assert isinstance(transport, asyncio.Transport)
        keep_alive(transport)
        peer = self._gate.connections.open(transport, transport.abort)
        front = Front(self._gate, peer)
        context = self._gate.context()
        if context is None:
            transport.set_protocol(front)
            front.begin(Connection(transport, transport))
            return
        # Or the client's hello would come here.
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
            # Failed handshakes are the client's business: port scans, wrong CAs, plain HTTP.
            if not isinstance(error, OSError):
                raise
        else:
            front.begin(Connection(transport, raw))


class Front(asyncio.Protocol):
    """Reads one request head, then passes the connection on, whole or head only."""

    def __init__(self, gate: Gate, peer: Peer) -> None:
        self._gate = gate
        self._peer = peer
        self._held = bytearray()
        self._searched = 0
        self._connection: Connection | None = None
        self._handler: asyncio.Protocol | None = None
        self._lost = False

    def begin(self, connection: Connection) -> None:
        """Go to work: the connection stands. Its first bytes, or its end, may have come before."""
        if self._lost:
            return
        self._connection = connection
        self._peer.is_verified = bool(connection.transport.get_extra_info("peercert"))
        self._gate.fronts.add(self)
        self._look()

    def abort(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.transport.abort()

    def release(self) -> tuple[Connection, bytes]:
        """Give the connection away to whoever serves the stream; its reading is paused.

        Returns:
            The connection and what the client sent behind its request head.
        """
        assert self._connection is not None
        self._connection.transport.pause_reading()
        early, self._held = bytes(self._held), bytearray()
        return self._connection, early

    def data_received(self, data: bytes) -> None:
        """Collect the head, or what comes behind it."""
        self._held += data
        if self._handler is None:
            self._look()
        elif len(self._held) > MAX_EARLY and self._connection is not None:
            self._connection.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell aiohttp when it serves this connection; it cancels the handler."""
        self._lost = True
        self._gate.fronts.discard(self)
        self._peer.owner.close(self._peer)
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass on."""
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
        """Give aiohttp the head of this length, and what follows it unless that is kept here."""
        assert self._connection is not None
        head, self._held = bytes(self._held[:length]), self._held[length:]
        self._handler = self._gate.new_handler(self._peer)
        self._handler.connection_made(self._connection.transport)
        self._handler.data_received(head)
        if self._gate.stream is not None and self._gate.stream.match(head):
            return
        if self._gate.hold:
            self._peer.on_trust = self._hand_over
        else:
            self._peer.hold(0)
            self._hand_over()

    def _hand_over(self) -> None:
        """Give aiohttp the connection for good."""
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
