"""A connection that ends leaves nothing in memory for the garbage collector.

A TLS connection has buffers of a quarter of a megabyte, and ``tune_gc`` makes the collector run rarely.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import pytest

from controller_runtime.serving import connections
from tests.unit.virtual_node.kubelet.conftest import Node, Rig, Serve
from tests.unit.virtual_node.kubelet.lower import Exchange, rest_of
from tests.unit.virtual_node.kubelet.stream_client import EXEC, SPDY, closed, echo, upgrade
from virtual_node.kubelet.streams import splice


@pytest.fixture
def wire() -> str:
    """TLS on both sides, because of its buffers."""
    return "tls"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ref[Any]]]:
    """Every TLS connection, accepted connection and splice made meanwhile; cycles are not collected."""
    found: list[ref[Any]] = []

    def remember(kind: type) -> None:
        original: Callable[..., None] = kind.__init__  # type: ignore[misc]

        def init(self: object, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            found.append(ref(self))

        monkeypatch.setattr(kind, "__init__", init)

    gc.disable()
    for kind in (SSLProtocol, connections.Front, splice.Splice, splice.End):
        remember(kind)
    yield found
    gc.enable()


async def left(made: list[ref[Any]]) -> list[object]:
    """Return the objects that are alive a moment after the last connection has closed."""
    for _ in range(500):
        if not any(one() for one in made):
            break
        await asyncio.sleep(0.02)
    return [type(alive) for one in made if (alive := one()) is not None]


async def a_stream(node: Node) -> None:
    """An exec that its client ends."""
    _, reader, writer = await upgrade(node)
    writer.write(b"x")
    await reader.readexactly(1)
    await closed(writer)


async def a_list(node: Node) -> None:
    """An ordinary request."""
    assert (await node.ask("/pods"))[0] == 200


async def a_refusal(node: Node) -> None:
    """A stream that is refused."""
    assert (await node.ask("/exec/shop/none/main?output=1", *SPDY, method="POST"))[0] == 404


async def a_scan(node: Node) -> None:
    """Connect and close, as health checks of load balancers do."""
    _, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    await closed(writer)


async def plain_http(node: Node) -> None:
    """Connect without TLS."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await rest_of(reader)
    await closed(writer)


async def a_distrust(node: Node) -> None:
    """A client that does not trust our certificate."""

    def connect() -> None:
        # Not through the loop, because its client's side would leave cycles of its own.
        with socket.create_connection(("127.0.0.1", node.server.port)) as plain, pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")

    await asyncio.to_thread(connect)


@pytest.mark.parametrize("use", [a_stream, a_list, a_refusal, a_scan, plain_http, a_distrust])
async def test_a_connection_leaves_nothing(
    rig: Rig, made: list[ref[Any]], use: Callable[[Node], Any]
) -> None:
    """However it ends."""
    async with rig(echo) as (_lower, node):
        for _ in range(3):
            await use(node)
        assert len(made) >= 3
        assert await left(made) == []


async def test_a_lower_cluster_without_tls_leaves_nothing(serve: Serve, made: list[ref[Any]]) -> None:
    """Its handshake fails at every stream."""

    async def garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        writer.close()

    lower = await asyncio.start_server(garbage, "127.0.0.1", 0)
    async with serve(lower.sockets[0].getsockname()[1]) as node:
        code, _, text = await node.ask(EXEC, *SPDY, method="POST")
        assert code == 500
        assert "cannot be reached" in text
        lower.close()
        assert await left(made) == []


async def test_a_lower_side_that_ends_first_leaves_nothing(rig: Rig, made: list[ref[Any]]) -> None:
    """As a command that ends by itself."""

    async def script(exchange: Exchange) -> None:
        await exchange.switch(behind=b"last words")

    async with rig(script) as (lower, node):
        _, reader, writer = await upgrade(node)
        assert await reader.read() == b"last words"
        await closed(writer)
        lower.exchanges.clear()
        del reader, writer
        assert await left(made) == []
