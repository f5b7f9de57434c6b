"""A TCP proxy that delays every byte: simulates a distant lower cluster on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path


class _Leg(asyncio.Protocol):
    """One side of a proxied connection; what it receives leaves the other side later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self.transport: asyncio.Transport | None = None
        self.other: _Leg | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        for data in self._early:
            transport.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        asyncio.get_running_loop().call_later(self._delay, self.other.send, data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.other is not None
        asyncio.get_running_loop().call_later(self._delay, self.other.close)

    def send(self, data: bytes) -> None:
        if self.transport is None:
            self._early.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


@contextlib.asynccontextmanager
async def delayed(kubeconfig: Path, *, port: int, seconds: float) -> AsyncIterator[Path]:
    """Return a kubeconfig with a server that answers ``seconds`` later than the real one (half of it each way)."""
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[object]] = set()

    def accept() -> _Leg:
        near, far = _Leg(seconds / 2), _Leg(seconds / 2)
        near.other, far.other = far, near
        task: asyncio.Task[object] = loop.create_task(loop.create_connection(lambda: far, "127.0.0.1", port))
        connecting.add(task)
        task.add_done_callback(connecting.discard)
        return near

    server = await loop.create_server(accept, "127.0.0.1", 0)
    document = json.loads(kubeconfig.read_text(encoding="utf-8"))
    address = server.sockets[0].getsockname()
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{address[1]}"
    slow = kubeconfig.with_name("delayed.kubeconfig")
    slow.write_text(json.dumps(document), encoding="utf-8")
    try:
        yield slow
    finally:
        server.close()
