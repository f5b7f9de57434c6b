"""The connections of a server: how many may be open, how long one may stay without a request, and the heads they hold.

A peer is a *stranger* until one of its requests was authorized (`Peer.trust`). A new connection is always accepted:
where it is one too many, another one is closed instead. So an attacker who opens connections displaces its own, and
no number of them keeps an API server out, whatever address it comes from.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import prometheus_client

from controller_runtime import log
from controller_runtime.util.byte_budget import ByteBudget

_OPEN = prometheus_client.Gauge(
    "virtual_node_server_connections", "Connections open now, by server.", ["server"]
)
_CLOSED = prometheus_client.Counter(
    "virtual_node_server_connections_closed_total",
    "Connections that a limit closed: of their number (connections), of time (timeout), or of memory (memory).",
    ["server", "limit"],
)
_FRESH = 1.0
"""Seconds that a new connection counts as one in use: time for the handshake and the first request."""
_SWEEP = 1.0
"""Seconds between two looks for connections that have had no request for too long."""
_WARN = 60.0
"""Seconds between two warnings that connections are closed because there are too many."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one server."""

    total: int = 512
    """Connections open at once."""
    strangers: int = 512
    """Those of peers that have not been authorized."""
    head_bytes: int = 16 * 1024
    """Request head of a peer without a verified client certificate."""
    verified_head_bytes: int = 16 * 1024
    """Request head of a peer with one."""
    held_bytes: int = 8 * 1024**2
    """Request heads of all strangers together."""
    first_request: float = 10.0
    """Seconds from the connection to the end of its first request head, the TLS handshake included."""
    idle: float = 120.0
    """Seconds without a request. More than the 90 s after which Go closes an idle connection itself: a request that
    crosses the close would fail."""


@dataclass(slots=True, eq=False)
class Peer:
    """One accepted connection."""

    source: str
    """Address that the connection came from; of IPv6 the /64 network."""
    abort: Callable[[], None]
    """Closes it at once."""
    since: float
    """When it was accepted, or its last request ended; the loop's time."""
    owner: Connections
    requests: int = 0
    """Under way."""
    has_asked: bool = False
    """Whether it has sent a complete request head."""
    is_verified: bool = False
    """Whether it showed a client certificate that the client CA signed."""
    is_trusted: bool = False
    """Whether one of its requests was authorized."""
    on_trust: Callable[[], None] | None = field(default=None, repr=False)
    """Called once when it becomes trusted."""

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count a request for as long as the block runs."""
        self.requests += 1
        self.has_asked = True
        try:
            yield
        finally:
            self.requests -= 1
            self.since = asyncio.get_running_loop().time()

    def hold(self, size: int) -> None:
        """Note that the connection holds so many bytes of a request that nobody has authorized."""
        self.owner.held.set(self, size)

    def trust(self) -> None:
        """Note that a request was authorized: the peer is no stranger any more."""
        if not self.is_trusted:
            self.is_trusted = True
            self.owner.held.set(self, 0)
            if self.on_trust is not None:
                self.on_trust()
                self.on_trust = None


class Connections:
    """The open connections of one server, or of several that share their limits.

    Args:
        name: Label of the metrics.
        limits: What is allowed.
        setting: Name of the configuration's field that raises the limits, for the warning; empty: there is none.
    """

    def __init__(self, name: str, limits: ConnectionLimits, *, setting: str = "") -> None:
        self.limits = limits
        self.held: ByteBudget[Peer] = ByteBudget(limits.held_bytes, drop=self._drop_for_memory)
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
        """Count a new connection; close another one where it is one too many."""
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
        """Forget a connection that has ended."""
        if peer in self._peers:
            self._peers.discard(peer)
            peer.on_trust = None
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

    def _drop_for_memory(self, peer: Peer) -> None:
        self._end(peer, "memory")

    def _end(self, peer: Peer, limit: str) -> None:
        _CLOSED.labels(self._name, limit).inc()
        # Forgotten now: the transport reports its end in the loop's next turn, and more may have come by then.
        self.close(peer)
        asyncio.get_running_loop().call_soon(peer.abort)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for peer in [peer for peer in self._peers if is_overdue(peer, self.limits, now=now)]:
            self._end(peer, "timeout")
        self._timer = asyncio.get_running_loop().call_later(_SWEEP, self._sweep) if self._peers else None


def victim(candidates: Iterable[Peer], *, now: float) -> Peer:
    """Choose the connection to close where there is one too many.

    Those without a verified client certificate go first, then those without a request, then those of the address
    that most come from, then the oldest.
    """
    found = list(candidates)
    sources = Counter(peer.source for peer in found)

    def rank(peer: Peer) -> tuple[bool, bool, int, float]:
        is_used = peer.requests > 0 or (not peer.has_asked and now - peer.since < _FRESH)
        return peer.is_verified, is_used, -sources[peer.source], peer.since

    return min(found, key=rank)


def is_overdue(peer: Peer, limits: ConnectionLimits, *, now: float) -> bool:
    """Whether a connection has been without a request for too long."""
    if peer.requests:
        return False
    return now - peer.since > (limits.idle if peer.has_asked else limits.first_request)


def source_of(peername: object) -> str:
    """The address that counts as one source: of IPv6 the /64 network, which a single machine may own; else empty."""
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
