"""Limits a server's connections: their number, the time without a request, and the memory of request heads.

A peer is a *stranger* until one of its requests is authorized (`Peer.trust`). A new connection is always
accepted; above the limit another connection is closed (``victim``). So an attacker who opens many connections
displaces mostly its own and cannot lock out an API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import prometheus_client

from controller_runtime import log

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
