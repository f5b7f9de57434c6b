"""Bodies and pages under attack: too long, too slow, too many, compressed, never read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from controller_runtime.serving import health
from controller_runtime.serving.server import Bodies, HttpsServer
from tests.waiting import becomes


@asynccontextmanager
async def taking(**limits: float) -> AsyncIterator[HttpsServer]:
    """Run a server that reads bodies within limits and answers with their length."""
    server = HttpsServer("127.0.0.1", 0)
    server.bodies = Bodies(**{"max_bytes": 1000, "total_bytes": 4000, "seconds": 30, **limits})  # type: ignore[arg-type]

    async def take(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await server.bodies.read(request))))

    async def give(request: web.Request) -> web.Response:
        return await server.bodies.write(request, web.Response(body=b"x" * int(request.query["bytes"])))

    server.add_route("POST", "/take", take)
    server.add_route("GET", "/give", give)
    async with server:
        yield server


class Upload:
    """A client that sends a part of a body and waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def begin(cls, server: HttpsServer, sent: int, length: int | None = 1000) -> Upload:
        """Send a head and ``sent`` bytes of a body; without ``length`` the body is chunked."""
        upload = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        how = f"Content-Length: {length}" if length is not None else "Transfer-Encoding: chunked"
        body = b"x" * sent if length is not None else f"{sent:x}\r\n".encode() + b"x" * sent + b"\r\n"
        upload.writer.write(f"POST /take HTTP/1.1\r\nHost: x\r\n{how}\r\n\r\n".encode() + body)
        await upload.writer.drain()
        return upload

    async def answer(self) -> tuple[int, str]:
        """Return status and head of the answer."""
        async with asyncio.timeout(30):
            head = await self._reader.readuntil(b"\r\n\r\n")
        self.writer.close()
        return int(head.split()[1]), head.decode()


@pytest.mark.parametrize(("sent", "length"), [(0, 1001), (1001, None)])
async def test_refuses_a_body_that_is_too_long(sent, length):
    """The answer is 413, because of the declared length or of the bytes that arrived."""
    async with taking() as server:
        assert (await (await Upload.begin(server, sent, length)).answer())[0] == 413


async def test_refuses_a_body_that_does_not_arrive():
    """The answer is 408."""
    async with taking(seconds=0.2) as server:
        assert (await (await Upload.begin(server, 10)).answer())[0] == 408
        assert server.bodies.held == 0


async def test_drops_the_oldest_of_too_many_bodies():
    """Stalled uploads are answered 503 and may be retried; one that arrives at once is read."""
    async with taking() as server:
        stalled = []
        for _ in range(4):
            stalled.append(await Upload.begin(server, 900))
            await asyncio.sleep(0.05)
        assert server.bodies.held == 3600
        whole = await Upload.begin(server, 1000)
        assert (await whole.answer())[0] == 200
        status, head = await stalled[0].answer()
        assert status == 503
        assert "Retry-After: 1\r\n" in head
        assert server.bodies.held == 2700
        for upload in stalled[1:]:
            upload.writer.close()


async def test_drops_clients_that_do_not_read_their_responses(session: aiohttp.ClientSession):
    """The oldest if responses exceed the memory, each after a time; a client that reads is served."""
    size = 8_000_000  # more than the sockets' buffers take
    async with taking(total_bytes=3 * size, seconds=2) as server:
        lazy = []
        for _ in range(8):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(f"GET /give?bytes={size} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            lazy.append(sock)

        async def kept() -> tuple[int, int]:
            return server.bodies.held, len(server._connections)

        await becomes(kept, (3 * size, 3))
        async with session.get(f"http://127.0.0.1:{server.port}/give?bytes={size}") as answer:
            assert len(await answer.read()) == size

        async def held() -> int:
            return server.bodies.held

        await becomes(held, 0)
        for sock in lazy:
            sock.close()


async def test_does_not_decompress(session: aiohttp.ClientSession):
    """Even a body that is small."""
    bomb = gzip.compress(b"x" * 500_000)
    assert len(bomb) < 1000
    headers = {"Content-Encoding": "gzip"}
    async with taking() as server:
        url = f"http://127.0.0.1:{server.port}/take"
        async with session.post(url, data=bomb, headers=headers) as answer:
            assert (answer.status, await answer.text()) == (200, str(len(bomb)))


async def test_drops_scrapers_that_do_not_read(monkeypatch: pytest.MonkeyPatch):
    """They share one page meanwhile, and another scraper is served."""
    rendered = 0
    page = b"x 1\n" * 1_000_000

    def render(registry: object) -> bytes:
        nonlocal rendered
        rendered += 1
        return page

    monkeypatch.setattr(health, "choose_encoder", lambda _accept: (render, "text/plain"))
    monkeypatch.setattr(health, "_WRITE_SECONDS", 3.0)  # enough for a reader on a busy machine
    async with HttpsServer("127.0.0.1", 0) as server:
        lazy = []
        for _ in range(20):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            lazy.append(sock)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{server.port}/metrics") as answer,
        ):
            assert await answer.read() == page
        assert rendered < 10

        async def left() -> int:
            return len(server._connections)

        await becomes(left, 0)
        for sock in lazy:
            with contextlib.suppress(OSError):
                sock.close()
