"""Streams that end: whoever leaves first, however slowly anybody reads."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os

import pytest
from aiohttp import web

from tests.unit.virtual_node.kubelet.conftest import Rig, Serve
from tests.unit.virtual_node.kubelet.lower import Exchange, Sender
from tests.unit.virtual_node.kubelet.stream_client import (
    EXEC,
    SPDY,
    closed,
    echo,
    open_streams,
    rest_of,
    upgrade,
)
from virtual_node.kubelet.server.server import _end_kept


async def test_a_client_that_leaves_ends_the_lower_side(rig: Rig) -> None:
    """Without a client the command's connection is closed, and the gauge returns to nought."""
    async with rig(echo) as (lower, node):
        before = open_streams()
        _, reader, writer = await upgrade(node)
        writer.write(b"x")
        await reader.readexactly(1)
        assert open_streams() == before + 1
        await closed(writer)
        await (await lower.exchange()).ended.wait()
        await node.server.streams._wait_empty()
        assert open_streams() == before


async def test_a_connection_that_is_closed_while_it_is_served_is_no_fault(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides of a stream may end in one moment: its transport is closed twice, and then knows nothing of itself."""

    async def close(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        request.transport.close()
        return web.Response()

    async with serve(1, extra_routes=[web.get("/metrics/close", close)]) as node:
        reader, writer = await node.connect()
        writer.write(b"GET /metrics/close HTTP/1.1\r\nHost: node\r\n\r\n")
        assert await rest_of(reader) == b""
        await closed(writer)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_client_that_leaves_before_the_answer_ends_the_lower_side(rig: Rig) -> None:
    """The upgrade under way is given up."""

    async def script(exchange: Exchange) -> None:
        await exchange.read_to_end()

    async with rig(script) as (lower, node):
        _, writer = await node.connect()
        writer.write(
            f"POST {EXEC} HTTP/1.1\r\nHost: node\r\n".encode() + "\r\n".join(SPDY).encode() + b"\r\n\r\n"
        )
        exchange = await lower.exchange()
        await closed(writer)
        await exchange.ended.wait()
        await node.server.streams._wait_empty()


async def test_a_lower_side_that_leaves_ends_the_client(rig: Rig) -> None:
    """After the last byte the client's connection ends."""

    async def script(exchange: Exchange) -> None:
        await exchange.switch(behind=b"last words")

    async with rig(script) as (_lower, node):
        _, reader, writer = await upgrade(node)
        assert await reader.read() == b"last words"
        await closed(writer)


async def test_half_closing_passes_on_where_it_exists(rig: Rig, wire: str) -> None:
    """On plain TCP the lower side hears the end of stdin and can still answer; TLS has no such thing."""

    async def script(exchange: Exchange) -> None:
        await exchange.switch()
        exchange.writer.write(await exchange.reader.read() + b" and back")

    async with rig(script) as (_lower, node):
        _, reader, writer = await upgrade(node)
        if wire == "tls":
            assert not writer.can_write_eof()
        else:
            writer.write(b"there")
            writer.write_eof()
            assert await reader.read() == b"there and back"
        await closed(writer)


async def test_a_big_transfer_arrives_whole_both_ways_at_once(rig: Rig) -> None:
    """32 MiB in each direction, byte for byte."""
    block = os.urandom(1 << 20)
    expected = hashlib.sha256(block * 32).digest()

    async def receive(reader: asyncio.StreamReader) -> bytes:
        digest = hashlib.sha256()
        for _ in range(32):
            digest.update(await reader.readexactly(1 << 20))
        return digest.digest()

    async def send(writer: asyncio.StreamWriter) -> None:
        for _ in range(32):
            writer.write(block)
            await writer.drain()

    below: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def script(exchange: Exchange) -> None:
        await exchange.switch()
        _, digest = await asyncio.gather(send(exchange.writer), receive(exchange.reader))
        below.set_result(digest)
        await exchange.read_to_end()

    async with rig(script) as (_lower, node):
        _, reader, writer = await upgrade(node)
        _, above = await asyncio.gather(send(writer), receive(reader))
        assert above == expected
        assert await below == expected
        await closed(writer)


async def test_a_slow_reader_holds_the_sender_back_and_loses_nothing(rig: Rig) -> None:
    """A sender of 64 MiB stalls long before its end; its last byte still arrives after it has left."""
    sender = Sender()
    total = 64

    async def script(exchange: Exchange) -> None:
        await exchange.switch()
        exchange.writer.transport.set_write_buffer_limits(high=1)
        await sender.send(exchange.writer, bytes(1 << 20), times=total)

    async with rig(script) as (_lower, node):
        reader, writer = await node.connect()
        head = f"POST {EXEC} HTTP/1.1\r\nHost: node\r\n".encode() + "\r\n".join(SPDY).encode() + b"\r\n\r\n"
        writer.write(head)
        # StreamReader stops reading from its socket at twice its limit of 1 MiB.
        await sender.stalled.wait()
        assert sender.sent < 32
        await reader.readuntil(b"\r\n\r\n")
        received = 0
        while data := await reader.read(1 << 20):
            received += len(data)
        assert received == total << 20
        await closed(writer)


async def test_stopping_gives_streams_their_grace_and_then_ends_them(rig: Rig) -> None:
    """Within the grace a stream goes on; afterwards both sides are closed, and stopping returns."""
    async with rig(echo, grace=0.3) as (lower, node):
        _, reader, writer = await upgrade(node)
        stopping = asyncio.create_task(node.server.stop())
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        with pytest.raises(OSError, match=r"\d"):
            await node.connect()
        assert await rest_of(reader) == b""
        await stopping
        await (await lower.exchange()).ended.wait()
        await closed(writer)


async def test_a_connection_that_waits_for_its_next_request_ends_when_stopping_begins(rig: Rig) -> None:
    """Its caller connects anew, to whoever listens then; refused here, a log would fail as long as a stream is open."""
    async with rig(echo, grace=60.0) as (_, node):
        idle, idle_writer = await node.connect()
        idle_writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        await idle.readuntil(b"\r\n\r\nok")
        _, reader, writer = await upgrade(node)
        stopping = asyncio.create_task(node.server.stop())
        assert await rest_of(idle) == b""
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await closed(writer)
        await closed(idle_writer)
        await stopping


async def test_a_request_that_has_just_come_is_answered_when_stopping_begins(serve: Serve, wire: str) -> None:
    """Nobody has looked at it yet, or its answer is on its way: the connection ends behind the answer."""
    for turns in range(6):
        async with serve(1) as node:
            idle, writer = await node.connect()
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
            await idle.readuntil(b"\r\n\r\nok")
            connections = node.server._runner.server
            assert connections is not None
            (connection,) = connections.connections
            connection.data_received(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
            for _ in range(turns):
                await asyncio.sleep(0)
            _end_kept(connections)
            assert (await rest_of(idle)).endswith(b"\r\n\r\nok"), f"{turns} turns of the loop later"
            await closed(writer)


async def test_stopping_does_not_wait_when_nothing_is_open(rig: Rig) -> None:
    """The grace is for streams, not for its own sake."""
    async with rig(echo, grace=60.0) as (_, node):
        reader, writer = await node.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nok")
        _, idle = await node.connect()
        async with asyncio.timeout(50):
            await node.server.stop()
        await closed(writer)
        await closed(idle)
