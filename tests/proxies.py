"""Small proxies on loopback: HTTP CONNECT, the same over TLS with client certificates, and SOCKS5 with a password."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

USER, PASSWORD = "me", "p@ss"


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        url: for ``proxy-url``, without user and password.
        asked: the targets that were asked for, as host and port; those of HTTP with the whole head.
        names: common names of the clients' certificates.
        refusal: what an HTTP proxy answers instead of opening a tunnel; empty: nothing.
        code: reply code of a SOCKS5 proxy; 0: it opens the tunnel.
    """

    url: str
    asked: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    refusal: bytes = b""
    code: int = 0

    def url_with_login(self) -> str:
        """Return the URL with user and password."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{USER}:p%40ss@{rest}"

    async def open(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, int] | None:
        """Speak with a client until it may send; return the target, None: the proxy refused."""
        secured = writer.get_extra_info("peercert")
        if secured:
            self.names += [value for part in secured["subject"] for key, value in part if key == "commonName"]
        if self.url.startswith("socks5:"):
            return await self._open_socks(reader, writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        if self.refusal:
            writer.write(self.refusal)
            return None
        host, _, port = head.split(" ")[1].rpartition(":")
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return host, int(port)

    async def _open_socks(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, int] | None:
        _, methods = await reader.readexactly(2)
        offered = await reader.readexactly(methods)
        wanted = 2 if 2 in offered else 0
        writer.write(bytes([5, wanted]))
        if wanted:
            _, size = await reader.readexactly(2)
            user = await reader.readexactly(size)
            password = await reader.readexactly((await reader.readexactly(1))[0])
            known = (user.decode(), password.decode()) == (USER, PASSWORD)
            writer.write(bytes([1, 0 if known else 1]))
            if not known:
                return None
        kind = (await reader.readexactly(4))[3]
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = ".".join(map(str, await reader.readexactly(4)))
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append(f"{host}:{port}")
        # The address in the answer is a name, whose length the client must respect.
        writer.write(bytes([5, self.code, 0, 3, 2]) + b"me" + bytes(2))
        return None if self.code else (host, port)


@contextlib.asynccontextmanager
async def proxy(scheme: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """Run a proxy until the block ends.

    Args:
        scheme: http, https or socks5.
        tls: context of an https proxy.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        # Cancelled at the end of the test; asyncio would report that.
        with contextlib.suppress(asyncio.CancelledError, ConnectionError, EOFError):
            target = await running.open(reader, writer)
            if target is not None:
                there = await asyncio.open_connection(*target)
                try:
                    await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
                finally:
                    there[1].close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    running = Proxy(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield running
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()
