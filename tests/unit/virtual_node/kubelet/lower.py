"""Both sides of a kubelet API: its one pod and its users, and a lower apiserver with scripted answers to upgrades."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from controller_runtime.auth.kubeconfig import Credentials
from controller_runtime.client.client import Client
from virtual_node.kubelet.auth import Authenticator, UserInfo
from virtual_node.kubelet.base import PodTarget
from virtual_node.translate.pods.containers import reachable

Script = Callable[["Exchange"], Awaitable[None]]

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"


POD: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"namespace": "shop", "name": "web-1", "uid": "u-1"},
    "spec": {
        "containers": [{"name": "main"}, {"name": "side"}],
        "initContainers": [{"name": "init"}],
        "ephemeralContainers": [{"name": "debug"}],
    },
}


class Token(Credentials):
    """A bearer token for the lower cluster that grows when it is renewed."""

    def __init__(self) -> None:
        self.refreshed = 0

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        self.refreshed += refresh
        return {"Authorization": f"Bearer lower-{self.refreshed}"}


@dataclass
class OnePod:
    """A virtual node with one pod, shop/web-1, mirrored as t-shop/web-1-x."""

    client: Client
    listed: Iterable[Mapping[str, Any]] = (POD,)

    def resolve(self, namespace: str, name: str, *, uid: str | None = None) -> PodTarget | None:
        if (namespace, name) != ("shop", "web-1") or uid not in {None, "u-1"}:
            return None
        return PodTarget(
            cluster="east",
            namespace="t-shop",
            name="web-1-x",
            client=self.client,
            pod=POD,
            containers=reachable(POD["spec"], {"debug"}),
        )

    def pods(self) -> Iterable[Mapping[str, Any]]:
        return iter(self.listed)

    def running_pods(self) -> Iterable[Mapping[str, Any]]:
        """No pod runs."""
        return ()


class Everybody(Authenticator):
    """Authenticates every request; authentication has its own tests."""

    def __init__(self) -> None:
        super().__init__(None)

    async def authenticate(self, request: web.BaseRequest) -> UserInfo:
        return UserInfo("admin")


@dataclass
class Exchange:
    """One connection: its request head, and both directions."""

    request_line: str
    headers: list[tuple[str, str]]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    async def switch(self, *, behind: bytes = b"", extra: bytes = b"") -> None:
        """Answer 101, with bytes right behind the head."""
        self.writer.write(SWITCHING + extra + b"\r\n" + behind)
        await self.writer.drain()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the connection ends in any way."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


class Sender:
    """Sends pieces; knows how many were accepted, and whether it was blocked for half a second."""

    def __init__(self) -> None:
        self.sent = 0
        self.stalled = asyncio.Event()

    async def send(self, writer: asyncio.StreamWriter, piece: bytes, *, times: int) -> None:
        """Send the piece that many times, however long it takes."""
        for _ in range(times):
            writer.write(piece)
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                self.stalled.set()
                await writer.drain()
            self.sent += 1


class LowerServer:
    """Accepts connections, reads one request head on each, and runs the script."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None) -> None:
        self.exchanges: list[Exchange] = []
        self._arrived = asyncio.Condition()
        self._script = script
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        self._server.close()

    async def exchange(self, index: int = 0) -> Exchange:
        """Wait for the connection of that number."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.exchanges) > index)
        return self.exchanges[index]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            request_line, *lines = head.rstrip("\r\n").split("\r\n")
            headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
            exchange = Exchange(request_line, headers, reader, writer)
            async with self._arrived:
                self.exchanges.append(exchange)
                self._arrived.notify_all()
            await self._script(exchange)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            self._tasks.discard(task)
            if self.exchanges and self.exchanges[-1].reader is reader:
                self.exchanges[-1].ended.set()
            writer.close()
