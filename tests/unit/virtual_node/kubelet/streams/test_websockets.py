"""WebSockets from an API server that passes them on to kubelets: exec, attach and port-forward, in every protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from tests.serving import served
from tests.unit.virtual_node.kubelet.conftest import Node, Pki, Serve

TUNNEL = "SPDY/3.1+portforward.k8s.io"
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io", TUNNEL)
"""What a lower API server accepts, the best first."""
LOWER = "/prefix/api/v1/namespaces/t-shop/pods/web-1-x"
STDIN, RESIZE, CLOSE_STDIN = b"\x00date\n", b'\x04{"Width":80,"Height":24}', b"\xff\x00"


Before = Callable[[web.RouteDef], AbstractAsyncContextManager[Node]]


@pytest.fixture
def before(serve: Serve, pki: Pki, wire: str) -> Before:
    """Serve a node before a lower API server with one route."""

    @asynccontextmanager
    async def before(route: web.RouteDef) -> AsyncIterator[Node]:
        context = pki.server_context() if wire == "tls" else None
        async with served(route, tls=context) as port, serve(port) as node:
            yield node

    return before


@pytest.mark.parametrize(
    ("target", "offered", "chosen", "lower"),
    [
        ("/exec/shop/web-1/main?input=1&command=sh", ["v5.channel.k8s.io"], "v5.channel.k8s.io", "/exec"),
        (
            "/exec/shop/web-1/main?input=1&command=sh",
            ["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"],
            "v5.channel.k8s.io",
            "/exec",
        ),
        ("/attach/shop/web-1/main?output=1", ["v4.channel.k8s.io"], "v4.channel.k8s.io", "/attach"),
        ("/portForward/shop/web-1", [TUNNEL], TUNNEL, "/portforward"),
        ("/portForward/shop/web-1?port=80,81", ["v4.channel.k8s.io"], "v4.channel.k8s.io", "/portforward"),
    ],
)
async def test_messages_pass_between_client_and_lower_api_server(
    before: Before, target: str, offered: list[str], chosen: str, lower: str
) -> None:
    """With the protocol that the lower API server chooses: data, sizes of terminals, ends of input, pings and the close code."""
    asked: list[web.Request] = []

    async def echo(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        socket = web.WebSocketResponse(protocols=PROTOCOLS, autoping=False, max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
            elif message.data == CLOSE_STDIN:
                await socket.close(code=1001, message=b"done")
            else:
                await socket.send_bytes(message.data)
        return socket

    async with before(web.get(LOWER + lower, echo)) as node, aiohttp.ClientSession() as session:
        url = f"{'https' if node.client_context else 'http'}://127.0.0.1:{node.server.port}{target}"
        async with session.ws_connect(
            url, protocols=offered, ssl=node.client_context or True, autoping=False, max_msg_size=0
        ) as socket:
            assert socket.protocol == chosen
            for message in (STDIN, RESIZE, b"\x00" + bytes(300_000), b""):
                await socket.send_bytes(message)
                assert (await socket.receive_bytes()) == message
            await socket.ping(b"alive")
            answer = await socket.receive()
            assert (answer.type, answer.data) == (WSMsgType.PONG, b"alive")
            await socket.send_bytes(CLOSE_STDIN)
            assert (await socket.receive()).type is WSMsgType.CLOSE
            assert socket.close_code == 1001
    (request,) = asked
    assert request.headers["Authorization"] == "Bearer lower-0"
    assert "Origin" not in request.headers


async def test_a_refused_websocket_keeps_the_lower_api_servers_answer(before: Before) -> None:
    """So that kubectl tries SPDY next, and shows the reason."""

    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=400, text="unable to upgrade: unsupported protocol")

    async with before(web.get(LOWER + "/exec", refuse)) as node:
        code, _, body = await node.ask(
            "/exec/shop/web-1/main?output=1&command=sh",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol: v5.channel.k8s.io",
        )
    assert (code, body) == (400, "unable to upgrade: unsupported protocol")
