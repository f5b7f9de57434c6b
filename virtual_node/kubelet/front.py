"""What stands between an accepted connection and aiohttp: TLS, and a first look at the request head.

aiohttp knows one upgrade, WebSocket. Bytes that follow the head of any other, such as SPDY/3.1, it
parses as the next request, and they are gone by the time a handler takes the connection over. So the
first head of every connection is read here. When it asks for a stream, aiohttp is given the head alone
and the rest is kept for whoever takes the connection over. Any other connection is handed to aiohttp
for good, at the cost of one search for an empty line.

A stream asked for on a connection that served an ordinary request before works too, except for bytes
sent before the 101; Kubernetes' clients send none.

TLS is started here and not by the event loop's listener, for three reasons: the context in use is asked
for at every connection, so rotated certificates *and client CAs* count at once; the socket transport
below stays within reach, which `Splice` needs to know when its last byte has left; and a connection that
sends nothing is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable

from .http_head import END_OF_HEAD
from .splice import Connection, keep_alive
from .tls import start_tls

MAX_HEAD = 1024 * 1024
"""Bytes of a request head, as Go's net/http allows: ``kubectl exec`` carries whole scripts in the URL."""

MAX_EARLY = 64 * 1024
"""Bytes kept of what a client sends before it is answered; then its sending is held back."""

HEAD_TIMEOUT = 30.0
"""Seconds a connection may take to send its first request head."""

_STREAM = re.compile(
    rb"(?:GET|POST) /(?:exec|attach|portForward)/[^\r\n]*\r\n(?:[^\r\n]*\r\n)*?upgrade[ \t]*:", re.IGNORECASE
)

ContextSource = Callable[[], ssl.SSLContext | None]
HandlerFactory = Callable[[], asyncio.Protocol]


class Gate:
    """Makes the protocol of every accepted connection, and knows those that have not asked for anything yet.

    Args:
        new_handler: Makes aiohttp's protocol for one connection.
        context: Gives the TLS context for a new connection; None for plain HTTP.
    """

    def __init__(self, new_handler: HandlerFactory, context: ContextSource) -> None:
        self.new_handler = new_handler
        self.context = context
        self.handshakes: set[asyncio.Task[None]] = set()
        self.fronts: set[Front] = set()

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of a connection about to be accepted."""
        return Accepted(self)

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
        front = Front(self._gate)
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

    @staticmethod
    async def _start_tls(front: Front, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        # Failed handshakes are the client's business: port scans, wrong CAs, plain HTTP.
        with contextlib.suppress(OSError):
            transport = await start_tls(
                raw, front, context, server_side=True, ssl_handshake_timeout=HEAD_TIMEOUT
            )
            front.begin(Connection(transport, raw))


class Front(asyncio.Protocol):
    """Reads one request head, then passes the connection on, whole or head only."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._held = bytearray()
        self._searched = 0
        self._connection: Connection | None = None
        self._handler: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost = False

    def begin(self, connection: Connection) -> None:
        """Go to work: the connection stands. Its first bytes, or its end, may have come before."""
        if self._lost:
            return
        self._connection = connection
        self._gate.fronts.add(self)
        self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self.abort)
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
        """Collect the head, or what comes behind the head of an upgrade."""
        self._held += data
        if self._handler is None:
            self._look()
        elif len(self._held) > MAX_EARLY and self._connection is not None:
            self._connection.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell aiohttp when it serves this connection; it cancels the handler."""
        self._lost = True
        self._decided()
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
        length = self._held.find(END_OF_HEAD, self._searched)
        if length < 0:
            self._searched = max(0, len(self._held) - len(END_OF_HEAD) + 1)
            if len(self._held) > MAX_HEAD:
                self._decided()
                transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n")
                transport.close()
            return
        self._decided()
        length += len(END_OF_HEAD)
        head, rest = bytes(self._held[:length]), bytes(self._held[length:])
        handler = self._gate.new_handler()
        if _STREAM.match(head):
            self._held = bytearray(rest)
            self._handler = handler
            handler.connection_made(transport)
            handler.data_received(head)
        else:
            self._held = bytearray()
            transport.set_protocol(handler)
            handler.connection_made(transport)
            handler.data_received(head + rest)

    def _decided(self) -> None:
        self._gate.fronts.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
