"""Connections that attack a server before they are authorized: idle, slow, long, many."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from controller_runtime.serving.connections import ConnectionLimits
from controller_runtime.serving.server import HttpsServer
from controller_runtime.tls import key_pairs
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import CertificateReloader

ASK = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def pair() -> KeyPair:
    """A serving pair."""
    return key_pairs.self_signed("n", hosts=["127.0.0.1"])


@pytest.fixture(params=["tcp", "tls"])
def tls(request: pytest.FixtureRequest, pair: KeyPair) -> CertificateReloader | None:
    """The server's certificate; None without TLS."""
    return CertificateReloader.from_pair(pair) if request.param == "tls" else None


@pytest.fixture
def connect(tls: CertificateReloader | None, pair: KeyPair) -> Callable[[HttpsServer], Awaitable[Streams]]:
    """Open a connection."""
    context = ssl.create_default_context(cadata=pair.certificate.decode()) if tls is not None else None
    return lambda server: asyncio.open_connection("127.0.0.1", server.port, ssl=context)


async def closed(streams: Streams) -> bytes:
    """Return the data that a server sends before it closes the connection."""
    reader, writer = streams
    sent = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            sent = await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return sent


async def test_idle_connections_are_closed_for_new_ones(tls, connect):
    """A server full of idle connections answers the next client at once."""
    async with HttpsServer(
        "127.0.0.1", 0, tls=tls, limits=ConnectionLimits(total=10, strangers=10)
    ) as server:
        idle = [await connect(server) for _ in range(30)]
        reader, writer = await connect(server)
        writer.write(ASK)
        assert await reader.readuntil(b"ok")
        assert len(server._connections) <= 10
        for streams in idle[:20]:
            assert await closed(streams) == b""
        writer.close()
        for _, idle_writer in idle[20:]:
            idle_writer.close()


async def test_silent_and_slow_connections_are_closed(tls, connect):
    """With no byte, half a head, or a byte now and then."""
    async with HttpsServer("127.0.0.1", 0, tls=tls, limits=ConnectionLimits(first_request=1.0)) as server:
        silent, half, slow = [await connect(server) for _ in range(3)]
        half[1].write(ASK[:10])

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    slow[1].write(b"x")
                    await slow[1].drain()
                    await asyncio.sleep(0.2)

        dripping = asyncio.create_task(drip())
        started = time.monotonic()
        for streams in (silent, half, slow):
            assert await closed(streams) == b""
        assert time.monotonic() - started < 10
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        assert len(server._connections) == 0


@pytest.mark.parametrize("tls", ["tls"], indirect=True)
async def test_unfinished_handshake_is_closed(tls):
    """A client that sends nothing to the TLS port, or half a hello."""
    async with HttpsServer("127.0.0.1", 0, tls=tls, limits=ConnectionLimits(first_request=0.5)) as server:
        silent, half = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        half[1].write(b"\x16\x03\x01\x02\x00")
        for streams in (silent, half):
            assert await closed(streams) == b""
        assert len(server._connections) == 0


async def test_slow_second_request_is_closed(tls, connect):
    """After the idle time, including half a head at its end."""
    async with HttpsServer("127.0.0.1", 0, tls=tls, limits=ConnectionLimits(idle=1.0)) as server:
        reader, writer = await connect(server)
        writer.write(ASK)
        await reader.readuntil(b"ok")
        writer.write(ASK[:10])
        assert await closed((reader, writer)) == b""


async def test_long_head_is_refused(tls, connect):
    """431, with and without an end."""
    async with HttpsServer("127.0.0.1", 0, tls=tls) as server:
        for head in (
            b"GET / HTTP/1.1\r\nX: " + b"x" * 17_000,
            b"GET /" + b"x" * 17_000 + b" HTTP/1.1\r\n\r\n",
        ):
            streams = await connect(server)
            streams[1].write(head)
            assert (await closed(streams)).startswith(b"HTTP/1.1 431 ")


async def test_memory_of_half_heads_is_bounded(tls, connect):
    """The oldest ones are dropped; a client that sends its head at once is served."""
    limits = ConnectionLimits(held_bytes=50_000)
    async with HttpsServer("127.0.0.1", 0, tls=tls, limits=limits) as server:
        half = []
        for _ in range(8):
            streams = await connect(server)
            streams[1].write(b"GET / HTTP/1.1\r\nX: " + b"x" * 15_000)
            half.append(streams)
            await asyncio.sleep(0.05)
        for streams in half[:4]:
            assert await closed(streams) == b""
        assert server._connections.held.held <= 50_000
        reader, writer = await connect(server)
        writer.write(ASK)
        await reader.readuntil(b"ok")
        for _, one in [*half[4:], (reader, writer)]:
            one.close()


async def test_pipelined_requests_and_bodies_are_served(tls, connect):
    """Data after the head is passed on."""
    got: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.Response(text="taken")

    server = HttpsServer("127.0.0.1", 0, tls=tls)
    server.add_route("POST", "/take", take)
    async with server:
        reader, writer = await connect(server)
        writer.write(
            ASK * 2 + b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 40_000
        )
        await asyncio.sleep(0.05)
        writer.write(b"x" * 60_000)
        for end in (b"ok", b"ok", b"taken"):
            await reader.readuntil(end)
        writer.close()
    assert got == [b"x" * 100_000]
