"""A client of the kubelet API's streams, on a raw socket."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from tests.unit.virtual_node.kubelet.conftest import Node
from tests.unit.virtual_node.kubelet.lower import Exchange

SPDY = ("Connection: Upgrade", "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v5.channel.k8s.io")
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol: v4.channel.k8s.io",
)
EXEC = "/exec/shop/web-1/main?command=sh&command=-c&command=exit+42&input=1&output=1&error=1"


async def upgrade(
    node: Node,
    target: str = EXEC,
    *,
    method: str = "POST",
    headers: tuple[str, ...] = SPDY,
    early: bytes = b"",
) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """Request a stream; return the head of the response and the connection."""
    reader, writer = await node.connect()
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: node", *headers, "", ""])
    writer.write(head.encode() + early)
    return await reader.readuntil(b"\r\n\r\n"), reader, writer


async def echo(exchange: Exchange) -> None:
    """Switch, then send back all data until the client ends."""
    await exchange.switch(extra=b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nAudit-Id: 1\r\n")
    while data := await exchange.reader.read(65536):
        exchange.writer.write(data)
        await exchange.writer.drain()


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return


def open_streams(verb: str = "exec") -> float:
    return REGISTRY.get_sample_value("virtual_node_kubelet_streams", {"verb": verb}) or 0.0
