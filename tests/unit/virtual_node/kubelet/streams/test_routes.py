"""exec, attach and port-forward from a client's socket to the lower apiserver's and back."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.unit.virtual_node.kubelet.conftest import Rig
from tests.unit.virtual_node.kubelet.lower import Exchange
from tests.unit.virtual_node.kubelet.stream_client import EXEC, SPDY, WEBSOCKET, closed, echo, upgrade


async def test_an_exec_becomes_the_lower_clusters_exec(rig: Rig) -> None:
    """Names, parameters and credentials are translated; protocol headers pass both ways, others do not."""
    async with rig(echo) as (lower, node):
        head, reader, writer = await upgrade(
            node, headers=(*SPDY, "Authorization: Bearer up", "Impersonate-User: root")
        )
        exchange = await lower.exchange()
        method, target, _ = exchange.request_line.split(" ")
        assert method == "POST"
        url = urlsplit(target)
        assert url.path == "/prefix/api/v1/namespaces/t-shop/pods/web-1-x/exec"
        assert parse_qsl(url.query) == [
            ("container", "main"),
            ("stdin", "true"),
            ("stdout", "true"),
            ("stderr", "true"),
            ("command", "sh"),
            ("command", "-c"),
            ("command", "exit 42"),
        ]
        assert exchange.header("Authorization") == ["Bearer lower-0"]
        assert exchange.header("Host") == [f"127.0.0.1:{lower.port}"]
        assert exchange.header("X-Stream-Protocol-Version") == ["v5.channel.k8s.io"]
        assert exchange.header("Impersonate-User") == []
        assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n" in head
        assert b"Audit-Id" not in head
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await closed(writer)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (
            "/attach/shop/web-1/debug?output=1&tty=1&input=1",
            "attach",
            "container=debug&stdin=true&stdout=true&tty=true",
        ),
        ("/attach/shop/web-1/u-1/side?output=1", "attach", "container=side&stdout=true"),
        ("/exec/shop/web-1/u-1/init?command=ls&output=1", "exec", "container=init&stdout=true&command=ls"),
        ("/portForward/shop/web-1", "portforward", ""),
        ("/portForward/shop/web-1/u-1", "portforward", ""),
    ],
)
async def test_every_route_finds_its_subresource(rig: Rig, target: str, path: str, query: str) -> None:
    """attach, port-forward and the variants with a UID."""
    async with rig(echo) as (lower, node):
        _, _, writer = await upgrade(node, target)
        exchange = await lower.exchange()
        url = urlsplit(exchange.request_line.split(" ")[1])
        assert url.path == f"/prefix/api/v1/namespaces/t-shop/pods/web-1-x/{path}"
        assert url.query == query
        await closed(writer)


@pytest.mark.parametrize(("method", "headers"), [("POST", SPDY), ("GET", WEBSOCKET), ("GET", SPDY)])
async def test_bytes_after_the_heads_are_not_lost(rig: Rig, method: str, headers: tuple[str, ...]) -> None:
    """Data in the same packet as a head arrives, in order, on both sides and for both protocols."""

    async def script(exchange: Exchange) -> None:
        await exchange.switch(behind=b"early from lower|")
        exchange.writer.write(await exchange.reader.readexactly(16) + b"|")
        exchange.writer.write(await exchange.reader.readexactly(5))

    async with rig(script) as (_lower, node):
        _, reader, writer = await upgrade(node, method=method, headers=headers, early=b"early from upper")
        assert await reader.readexactly(17) == b"early from lower|"
        writer.write(b"later")
        assert await reader.read(100) != b""
        await closed(writer)


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_early_bytes_arrive_unchanged_and_in_order(rig: Rig, method: str) -> None:
    """Even bytes that look like another request."""
    early = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3000
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def script(exchange: Exchange) -> None:
        await exchange.switch()
        received.set_result(await exchange.reader.readexactly(len(early) + 5))

    async with rig(script) as (_lower, node):
        headers = WEBSOCKET if method == "GET" else SPDY
        _, _, writer = await upgrade(node, method=method, headers=headers, early=early)
        writer.write(b"later")
        assert await received == early + b"later"
        await closed(writer)


async def test_a_reused_connection_can_become_a_stream(rig: Rig) -> None:
    async with rig(echo) as (_lower, node):
        reader, writer = await node.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nok")
        writer.write(
            f"POST {EXEC} HTTP/1.1\r\nHost: node\r\n".encode() + "\r\n".join(SPDY).encode() + b"\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await closed(writer)
