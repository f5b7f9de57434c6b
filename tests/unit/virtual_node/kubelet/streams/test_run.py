"""``/run``: a command's output as a response."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from urllib.parse import parse_qsl

import pytest
from aiohttp import web

from tests.serving import served
from tests.unit.virtual_node.kubelet.conftest import Node, Pki, Serve

RUN = "/run/shop/web-1/main?cmd=ls+-l"
SUCCESS = b"\x03" + json.dumps({"kind": "Status", "status": "Success"}).encode()
EXIT_3 = (
    b"\x03"
    + json.dumps(
        {
            "kind": "Status",
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": "command terminated with non-zero exit code",
            "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
        }
    ).encode()
)

Answering = Callable[..., AbstractAsyncContextManager[tuple[Node, list[web.Request]]]]


@pytest.fixture
def answering(serve: Serve, pki: Pki, wire: str) -> Answering:
    """Serve a node with an apiserver that answers an exec with the given messages."""

    @asynccontextmanager
    async def answering(*messages: bytes) -> AsyncIterator[tuple[Node, list[web.Request]]]:
        seen: list[web.Request] = []

        async def exec_(request: web.Request) -> web.StreamResponse:
            seen.append(request)
            socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io", "v4.channel.k8s.io"])
            await socket.prepare(request)
            for message in messages:
                await socket.send_bytes(message)
            await socket.close()
            return socket

        async with _served(exec_, serve, pki, wire) as node:
            yield node, seen

    return answering


@asynccontextmanager
async def _served(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    serve: Serve,
    pki: Pki,
    wire: str,
    **options: float,
) -> AsyncIterator[Node]:
    route = web.get("/prefix/api/v1/namespaces/t-shop/pods/web-1-x/exec", handler)
    context = pki.server_context() if wire == "tls" else None
    async with served(route, tls=context) as port, serve(port, **options) as node:
        yield node


async def test_the_output_of_a_command(answering: Answering) -> None:
    """Stdout, then stderr, in any order of arrival; the command is split at spaces."""
    async with answering(b"\x01", b"\x02bad", b"\x01a", b"\x02\n", b"\x01b\n", SUCCESS) as (node, seen):
        assert (await node.ask(RUN, method="POST"))[::2] == (200, "ab\nbad\n")
    assert parse_qsl(seen[0].query_string) == [
        ("container", "main"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("command", "ls"),
        ("command", "-l"),
    ]
    assert seen[0].headers["Authorization"] == "Bearer lower-0"


async def test_a_command_that_fails(answering: Answering) -> None:
    """500 with the exit code and its stderr, worded as container runtimes do."""
    async with answering(b"\x01out", b"\x02no such file", EXIT_3) as (node, _):
        answer = await node.ask(RUN, method="POST")
    assert answer[::2] == (500, "command 'ls -l' exited with 3: no such file")


async def test_a_stream_that_ends_before_the_command(answering: Answering) -> None:
    """Output without a result is an error."""
    async with answering(b"\x01out") as (node, _):
        code, _, body = await node.ask(RUN, method="POST")
    assert code == 500
    assert body == 'cluster "east" ended the stream before the command was done'


async def test_a_refusal_reaches_the_caller(serve: Serve, pki: Pki, wire: str) -> None:
    """With the lower apiserver's message, which a WebSocket client would usually drop."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"kind": "Status", "code": 403, "message": "pods/exec is forbidden"}, status=403
        )

    async with _served(refuse, serve, pki, wire) as node:
        assert (await node.ask(RUN, method="POST"))[::2] == (403, "pods/exec is forbidden")


@pytest.mark.parametrize("encoding", ["identity", "deflate"])
async def test_a_refusal_without_end_uses_no_memory(serve: Serve, pki: Pki, wire: str, encoding: str) -> None:
    """A hostile lower API server would end the process, with all its lower clusters."""
    sent = 0
    block = b" " * 65536 if encoding == "identity" else zlib.compress(b" " * (1 << 26))

    async def refuse(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=403, headers={"Content-Encoding": encoding})
        await response.prepare(request)
        while sent < 1 << 26:
            await response.write(block)
            sent += len(block)
        return response

    tracemalloc.start()
    try:
        async with _served(refuse, serve, pki, wire) as node:
            code, _, _ = await node.ask(RUN, method="POST")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert code == 403
    assert sent < 1 << 26
    assert peak < 16 << 20


async def test_credentials_are_renewed_once(serve: Serve, pki: Pki, wire: str) -> None:
    """A first 401 means a rotated token; a second one is reported as an error of the node and not of the caller."""
    tokens: list[str] = []

    async def run_for(good: str, request: web.Request) -> web.StreamResponse:
        tokens.append(request.headers["Authorization"])
        if tokens[-1] != f"Bearer {good}":
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await socket.prepare(request)
        await socket.send_bytes(b"\x01ok")
        await socket.send_bytes(SUCCESS)
        await socket.close()
        return socket

    async with _served(partial(run_for, "lower-1"), serve, pki, wire) as node:
        assert (await node.ask(RUN, method="POST"))[::2] == (200, "ok")
    assert tokens == ["Bearer lower-0", "Bearer lower-1"]
    tokens.clear()
    async with _served(partial(run_for, "nobody's"), serve, pki, wire) as node:
        code, _, body = await node.ask(RUN, method="POST")
    assert code == 500
    assert body.startswith('cluster "east" does not accept the virtual node\'s credentials: Unauthorized. ')
    assert "virtual-node check" in body
    assert tokens == ["Bearer lower-0", "Bearer lower-1"]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("answer_timeout", 'cluster "east" cannot be reached: no answer within 0.1 s'),
        ("stream_idle_timeout", "the command has produced no output for 0.1 s"),
    ],
)
async def test_a_silent_lower_cluster_is_an_error(
    serve: Serve, pki: Pki, wire: str, limit: str, said: str
) -> None:
    """Before the upgrade as with every other stream; afterwards when no data has arrived for long."""
    over = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        if limit == "stream_idle_timeout":
            await socket.prepare(request)
        await over.wait()
        return socket if socket.prepared else web.Response(status=503)

    async with _served(silent, serve, pki, wire, **{limit: 0.1}) as node:
        try:
            assert (await node.ask(RUN, method="POST"))[::2] == (500, said)
        finally:
            over.set()


@pytest.mark.parametrize("wire", ["tls"])
async def test_a_proxys_password_is_not_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a proxy that refuses the tunnel names it without its login."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with proxy, serve(1) as node:
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setattr(node.backend.client.config, "proxy_url", f"http://me:secret@127.0.0.1:{port}")
        code, _, body = await node.ask(RUN, method="POST")
        assert code == 500
        assert body == (
            f'cluster "east" cannot be reached: the proxy http://127.0.0.1:{port} answered 407 Proxy Authentication Required; '
            "is the proxy of proxy-url running, does it accept this kubeconfig, and does it reach the API server?"
        )


async def test_unknown_pods_and_containers_and_unreachable_clusters(serve: Serve) -> None:
    """404 for what does not exist, 500 with the cluster's name for a connection error."""
    async with serve(1) as node:
        assert (await node.ask("/run/shop/other/main?cmd=ls", method="POST"))[::2] == (
            404,
            "pod does not exist",
        )
        answer = await node.ask("/run/shop/web-1/nope?cmd=ls", method="POST")
        assert answer[::2] == (404, 'container not found ("nope")')
        code, _, body = await node.ask("/run/shop/web-1/u-1/main?cmd=ls", method="POST")
        assert code == 500
        assert body.startswith('cluster "east" cannot be reached: ')
