"""Limits a server's connections: their number, the time without a request, and the memory of request heads.

A peer is a *stranger* until one of its requests is authorized (`Peer.trust`). A new connection is always
accepted; above the limit another connection is closed (``victim``). So an attacker who opens many connections
displaces mostly its own and cannot lock out an API server.

``Front`` handles a new connection before aiohttp does: limits, TLS, and the first request head. The first head of a
connection is read here for two reasons. First, a connection uses little memory before it has sent a request;
`Connections` closes those that send none. Second, aiohttp knows only one upgrade, WebSocket. It would parse the bytes
after the head of another upgrade, such as SPDY/3.1, as the next request, and the handler that takes over the connection
would not get them. So aiohttp gets only the head of a stream, and the rest is kept for the handler.

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
import ipaddress
import re
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, TypeVar

import prometheus_client
from aiohttp import web
from aiohttp.typedefs import Handler

from controller_runtime import log
from controller_runtime.serving.raw_connection import Connection, start_tls, tune_socket

_OPEN = prometheus_client.Gauge(
    "virtual_node_server_connections", "Connections open now, by server.", ["server"]
)
_CLOSED = prometheus_client.Counter(
    "virtual_node_server_connections_closed_total",
    "Connections closed by a limit: on their number (connections), on time (timeout) or on memory (memory).",
    ["server", "limit"],
)
_FRESH = 1.0
"""Seconds for which a new connection counts as used, to have time for the handshake and the first request."""
_SWEEP = 1.0
"""Seconds between two checks for connections without a request for too long."""
_WARN = 60.0
"""Seconds between two warnings that connections are closed because there are too many."""
_Holder = TypeVar("_Holder")
MAX_EARLY = 16 * 1024
"""Maximum bytes kept after a client's first request head; above this, reading is paused."""

_END_OF_HEAD = b"\r\n\r\n"

ContextSource = Callable[[], ssl.SSLContext | None]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one server."""

    total: int = 512
    """Maximum number of open connections."""
    strangers: int = 512
    """Maximum number of connections of strangers."""
    head_bytes: int = 16 * 1024
    """Maximum bytes of a request head from a peer without a verified client certificate."""
    verified_head_bytes: int = 16 * 1024
    """Maximum bytes of a request head from a peer with a verified client certificate."""
    held_bytes: int = 8 * 1024**2
    """Maximum bytes in memory of the unauthorized requests of all strangers."""
    first_request: float = 10.0
    """Maximum seconds from the connection to the end of its first request head, including the TLS
    handshake."""
    idle: float = 120.0
    """Maximum seconds without a request. Longer than the 90 s after which a Go client closes an idle
    connection, because a request that is sent while the server closes the connection would fail."""


@dataclass(slots=True, eq=False)
class Peer:
    """An accepted connection."""

    source: str
    """Address of the client; for IPv6 its /64 network."""
    abort: Callable[[], None]
    """Closes the connection at once."""
    since: float
    """Time at which it was accepted or its last request ended, in the loop's seconds."""
    owner: Connections
    requests: int = 0
    """Number of current requests."""
    has_sent_request: bool = False
    """Whether it has sent a complete request head."""
    is_verified: bool = False
    """Whether it presented a client certificate signed by the client CA."""
    is_trusted: bool = False
    """Whether one of its requests was authorized."""
    on_trusted: Callable[[], None] | None = field(default=None, repr=False)
    """Called once when it becomes trusted."""

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count a current request while the block runs."""
        self.requests += 1
        self.has_sent_request = True
        try:
            yield
        finally:
            self.requests -= 1
            self.since = asyncio.get_running_loop().time()

    def hold(self, size: int) -> None:
        """Record how many bytes of its unauthorized requests are in memory."""
        self.owner.held.set(self, size)

    def trust(self) -> None:
        """Record that a request was authorized; the peer is no longer a stranger."""
        if not self.is_trusted:
            self.is_trusted = True
            self.owner.held.set(self, 0)
            if self.on_trusted is not None:
                self.on_trusted()
                self.on_trusted = None


class Connections:
    """The open connections of one server, or of several that share their limits.

    Args:
        name: Label of the metrics.
        limits: The limits.
        setting: Name of the configuration field that raises the limits, for the warning; empty: none.
    """

    def __init__(self, name: str, limits: ConnectionLimits, *, setting: str = "") -> None:
        self.limits = limits
        self.held: ByteBudget[Peer] = ByteBudget(
            limits.held_bytes, drop=lambda peer: self._end(peer, "memory")
        )
        self._name = name
        self._setting = setting
        self._peers: set[Peer] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._warned = float("-inf")
        self._log = log.get_logger(component=name)
        _OPEN.labels(name)
        for limit in ("connections", "timeout", "memory"):
            _CLOSED.labels(name, limit)

    def __len__(self) -> int:
        return len(self._peers)

    def open(self, transport: asyncio.BaseTransport, abort: Callable[[], None]) -> Peer:
        """Add a new connection; above a limit, close a connection, usually not the new one."""
        loop = asyncio.get_running_loop()
        peer = Peer(source_of(transport.get_extra_info("peername")), abort, loop.time(), self)
        strangers = [other for other in self._peers if not other.is_trusted]
        self._peers.add(peer)
        _OPEN.labels(self._name).inc()
        if len(strangers) >= self.limits.strangers:
            self._evict([*strangers, peer])
        elif len(self._peers) > self.limits.total:
            idle = [other for other in self._peers if other.is_trusted and not other.requests]
            self._evict(strangers or idle or [peer])
        if self._timer is None:
            self._timer = loop.call_later(_SWEEP, self._sweep)
        return peer

    def close(self, peer: Peer) -> None:
        """Remove a connection that has ended."""
        if peer in self._peers:
            self._peers.discard(peer)
            peer.on_trusted = None
            self.held.set(peer, 0)
            _OPEN.labels(self._name).dec()
        if not self._peers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _evict(self, candidates: list[Peer]) -> None:
        now = asyncio.get_running_loop().time()
        peer = victim(candidates, now=now)
        if now - self._warned >= _WARN:
            self._warned = now
            self._log.warning(
                "too many connections; those without a request are closed",
                open=len(self._peers),
                strangers=sum(not other.is_trusted for other in self._peers),
                source=peer.source,
                setting=self._setting or None,
            )
        self._end(peer, "connections")

    def _end(self, peer: Peer, limit: str) -> None:
        _CLOSED.labels(self._name, limit).inc()
        # Removed now, because the transport reports the end only in the loop's next pass, and more
        # connections may arrive before.
        self.close(peer)
        asyncio.get_running_loop().call_soon(peer.abort)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for peer in [peer for peer in self._peers if is_overdue(peer, self.limits, now=now)]:
            self._end(peer, "timeout")
        self._timer = asyncio.get_running_loop().call_later(_SWEEP, self._sweep) if self._peers else None


def victim(candidates: Iterable[Peer], *, now: float) -> Peer:
    """Choose the connection to close when there are too many.

    Prefer, in this order: no verified client certificate, no current request, the address with the most
    connections, the oldest.
    """
    found = list(candidates)
    sources = Counter(peer.source for peer in found)

    def rank(peer: Peer) -> tuple[bool, bool, int, float]:
        is_used = peer.requests > 0 or (not peer.has_sent_request and now - peer.since < _FRESH)
        return peer.is_verified, is_used, -sources[peer.source], peer.since

    return min(found, key=rank)


def is_overdue(peer: Peer, limits: ConnectionLimits, *, now: float) -> bool:
    """Report whether a connection has been without a request for too long."""
    if peer.requests:
        return False
    return now - peer.since > (limits.idle if peer.has_sent_request else limits.first_request)


def source_of(peername: object) -> str:
    """Return the source of a connection: its address, or for IPv6 its /64 network; empty if unknown."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    try:
        address = ipaddress.ip_address(str(peername[0]).partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class ByteBudget(Generic[_Holder]):
    """Counts bytes by holder. Above the limit, the holders that began first are dropped.

    A normal client sends a request within milliseconds, so the oldest holders are stalled clients.
    """

    def __init__(self, limit: int, *, drop: Callable[[_Holder], None]) -> None:
        """Create a budget; ``drop`` is called with a holder that must stop, and its bytes no longer count."""
        self._limit = limit
        self._drop = drop
        self._held: dict[_Holder, int] = {}
        self._sum = 0

    @property
    def held(self) -> int:
        """Return the bytes of all holders."""
        return self._sum

    def set(self, holder: _Holder, size: int) -> None:
        """Set the bytes of a holder; 0 removes it."""
        self._sum += size - self._held.get(holder, 0)
        if size:
            self._held[holder] = size
        else:
            self._held.pop(holder, None)
        while self._sum > self._limit:
            oldest = next(iter(self._held))
            self._sum -= self._held.pop(oldest)
            self._drop(oldest)


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
