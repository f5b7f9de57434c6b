"""Ends of streams: either side first, with fast or slow readers."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os

import pytest
from aiohttp import web

from tests.unit.virtual_node.kubelet.conftest import Rig, Serve
from tests.unit.virtual_node.kubelet.lower import Exchange, Sender, rest_of
from tests.unit.virtual_node.kubelet.stream_client import (
    EXEC,
    SPDY,
    closed,
    echo,
    open_streams,
    upgrade,
)
from virtual_node.kubelet.server import _end_kept


async def test_a_disconnected_client_ends_the_lower_side(rig: Rig) -> None:
    """The command's connection is closed, and the gauge returns to 0."""
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


async def test_closing_a_closed_connection_is_no_error(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides of a stream may end in one moment: its transport is closed twice."""

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


async def test_a_client_that_disconnects_before_the_response_ends_the_lower_side(rig: Rig) -> None:
    """The upgrade is cancelled."""

    async def script(exchange: Exchange) -> None:
        await rest_of(exchange.reader)

    async with rig(script) as (lower, node):
        _, writer = await node.connect()
        writer.write(
            f"POST {EXEC} HTTP/1.1\r\nHost: node\r\n".encode() + "\r\n".join(SPDY).encode() + b"\r\n\r\n"
        )
        exchange = await lower.exchange()
        await closed(writer)
        await exchange.ended.wait()
        await node.server.streams._wait_empty()


async def test_a_lower_side_that_ends_disconnects_the_client(rig: Rig) -> None:
    """After the last byte."""

    async def script(exchange: Exchange) -> None:
        await exchange.switch(behind=b"last words")

    async with rig(script) as (_lower, node):
        _, reader, writer = await upgrade(node)
        assert await reader.read() == b"last words"
        await closed(writer)


async def test_half_closing_is_passed_on_without_tls(rig: Rig, wire: str) -> None:
    """The lower side sees the end of stdin and can still answer; TLS has no half-close."""

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


async def test_a_large_transfer_is_complete_in_both_directions(rig: Rig) -> None:
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
        await rest_of(exchange.reader)

    async with rig(script) as (_lower, node):
        _, reader, writer = await upgrade(node)
        _, above = await asyncio.gather(send(writer), receive(reader))
        assert above == expected
        assert await below == expected
        await closed(writer)


async def test_a_slow_reader_blocks_the_sender_and_loses_nothing(rig: Rig) -> None:
    """A sender of 64 MiB stalls long before its end; its last byte still arrives after it has disconnected."""
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


async def test_stopping_ends_streams_after_their_grace_period(rig: Rig) -> None:
    """Within it a stream continues; afterwards both sides are closed, and stopping returns."""
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


async def test_stopping_closes_idle_connections_at_once(rig: Rig) -> None:
    """Their clients reconnect to the next process; refused here, a log would fail as long as a stream is open."""
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


async def test_a_request_received_when_stopping_begins_is_answered(serve: Serve, wire: str) -> None:
    """Read or not; the connection ends after the response."""
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


async def test_stopping_does_not_wait_without_streams(rig: Rig) -> None:
    async with rig(echo, grace=60.0) as (_, node):
        reader, writer = await node.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nok")
        _, idle = await node.connect()
        async with asyncio.timeout(50):
            await node.server.stop()
        await closed(writer)
        await closed(idle)
