"""Which connections a server closes: too many, too long without a request, or with too much buffered data."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.serving.connections import (
    ByteBudget,
    ConnectionLimits,
    Connections,
    Peer,
    is_overdue,
    source_of,
    victim,
)


@dataclass
class _Server:
    """Connections without sockets; `closed` has the names of those that were closed."""

    connections: Connections
    closed: list[str] = field(default_factory=list)

    def open(self, name: str, source: str = "10.0.0.1") -> Peer:
        """Accept a connection."""
        transport = _Transport(extra={"peername": (source, 1)})
        return self.connections.open(transport, lambda: self.closed.append(name))


class _Transport(asyncio.Transport):
    """A transport with a peer address."""


def _server(**limits: float) -> _Server:
    return _Server(Connections("test", ConnectionLimits(**limits)))  # type: ignore[arg-type]


@pytest.mark.looptime
async def test_oldest_unauthorized_connection_is_closed_for_a_new_one():
    """The new one may be the API server's."""
    server = _server(total=10, strangers=2)
    for name in "abcd":
        server.open(name)
        await asyncio.sleep(0.01)
    assert server.closed == ["a", "b"]
    assert len(server.connections) == 2


@pytest.mark.looptime
async def test_flood_of_one_address_closes_only_its_own_connections():
    """Even if its connections are newer."""
    server = _server(total=10, strangers=3)
    server.open("other", "10.0.0.2")
    await asyncio.sleep(0.1)
    for number in range(20):
        server.open(f"flood-{number}")
        await asyncio.sleep(0.01)
    assert server.closed == [f"flood-{number}" for number in range(18)]


@pytest.mark.looptime
async def test_authorized_connections_are_kept():
    """For any number of unauthorized ones."""
    server = _server(total=4, strangers=2)
    known = [server.open("known") for _ in range(2)]
    for peer in known:
        peer.trust()
    for _ in range(9):
        server.open("stranger")
        await asyncio.sleep(0.01)
    assert set(server.closed) == {"stranger"}
    assert len(server.connections) == 4


@pytest.mark.looptime
async def test_limit_of_all_connections_closes_idle_ones_only():
    """If all are authorized, an idle one is closed; if all are in use, the new one."""
    server = _server(total=2, strangers=2)
    busy, idle = server.open("busy"), server.open("idle")
    busy.trust()
    idle.trust()
    with busy.request():
        third = server.open("third")
        await asyncio.sleep(0.01)
        assert server.closed == ["idle"]
        third.trust()
        with third.request():
            server.open("fourth")
            await asyncio.sleep(0.01)
            assert server.closed == ["idle", "fourth"]


@pytest.mark.looptime
async def test_connection_without_a_request_is_closed_in_time():
    """The first request has a short time, later ones a longer one; a request in progress has no limit."""
    server = _server(first_request=10, idle=120)
    server.open("silent")
    asked, busy = server.open("asked"), server.open("busy")
    with asked.request():
        pass
    with busy.request():
        await asyncio.sleep(9)
        assert server.closed == []
        await asyncio.sleep(3)
        assert server.closed == ["silent"]
        await asyncio.sleep(106)
        assert server.closed == ["silent"]
        await asyncio.sleep(5)
        assert server.closed == ["silent", "asked"]
        await asyncio.sleep(1000)
        assert len(server.connections) == 1


@pytest.mark.looptime
async def test_heads_of_all_unauthorized_clients_are_bounded_together():
    """The one that has been sending for longest is closed; an authorized request does not count."""
    server = _server(held_bytes=100)
    first, second, third = (server.open(name) for name in ("first", "second", "third"))
    first.hold(60)
    second.hold(30)
    assert server.connections.held.held == 90
    third.hold(30)
    await asyncio.sleep(0)
    assert server.closed == ["first"]
    third.trust()
    assert server.connections.held.held == 30


@pytest.mark.looptime
async def test_counts_open_and_closed_connections():
    """A gauge of open ones, a counter of closed ones by limit."""

    def value(name: str, **labels: str) -> float | None:
        return prometheus_client.REGISTRY.get_sample_value(f"virtual_node_server_{name}", labels)

    server = _Server(Connections("counted", ConnectionLimits(total=1, strangers=1)))
    assert value("connections_closed_total", server="counted", limit="connections") == 0
    server.open("a")
    peer = server.open("b")
    assert value("connections", server="counted") == 1
    assert value("connections_closed_total", server="counted", limit="connections") == 1
    server.connections.close(peer)
    server.connections.close(peer)
    assert value("connections", server="counted") == 0


def _peer(**fields: object) -> Peer:
    connections = Connections("test", ConnectionLimits())
    return Peer(**{"source": "a", "abort": lambda: None, "since": 0.0, "owner": connections, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("goes", "stays"),
    [
        ({}, {"is_verified": True}),
        ({}, {"requests": 1, "source": "b"}),
        ({"since": 1.0}, {"since": 2.0, "source": "b"}),
        ({"since": 98.0}, {"since": 99.5, "source": "b"}),
        ({"since": 99.5, "has_sent_request": True}, {"since": 98.0, "requests": 1, "source": "b"}),
    ],
    ids=["unverified", "without a request", "older", "no longer new", "idle again"],
)
def test_order_in_which_connections_are_closed(goes, stays):
    first, second = _peer(**goes), _peer(**stays)
    assert victim([first, second], now=100.0) is first
    assert victim([second, first], now=100.0) is first


def test_address_with_most_connections_is_closed_first():
    """Even if another address has an older one."""
    old = _peer(source="b", since=0.0)
    many = [_peer(since=float(at)) for at in (5, 3, 4)]
    assert victim([old, *many], now=100.0) is many[1]


@pytest.mark.parametrize(
    ("peer", "overdue"),
    [
        ({"since": 91.0}, False),
        ({"since": 89.0}, True),
        ({"since": 89.0, "requests": 1}, False),
        ({"since": 89.0, "has_sent_request": True}, False),
        ({"since": -21.0, "has_sent_request": True}, True),
    ],
)
def test_when_a_connection_is_overdue(peer, overdue):
    """10 s for the first request, 120 s between two."""
    assert is_overdue(_peer(**peer), ConnectionLimits(), now=100.0) is overdue


@pytest.mark.parametrize(
    ("peername", "source"),
    [
        (("10.1.2.3", 4), "10.1.2.3"),
        (("::ffff:10.1.2.3", 4, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 4, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 4, 0, 2), "fe80::/64"),
        (None, ""),
        ("/run/socket", ""),
        ((), ""),
    ],
)
def test_source_of_an_address(peername, source):
    """An IPv4 address, an IPv6 /64."""
    assert source_of(peername) == source


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50))))
def test_byte_budget_is_never_exceeded(changes):
    """For any sequence of changes the sum stays within the limit and is that of the current holders."""
    sizes: dict[int, int] = {}
    budget: ByteBudget[int] = ByteBudget(100, drop=lambda holder: sizes.update({holder: 0}))
    for holder, size in changes:
        sizes[holder] = size
        budget.set(holder, size)
        assert budget.held == sum(sizes.values()) <= 100
