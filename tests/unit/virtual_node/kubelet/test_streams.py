"""exec, attach and port-forward from a client's socket to the lower apiserver's and back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from urllib.parse import parse_qsl, urlsplit

import pytest
from prometheus_client import REGISTRY

from controller_runtime.errors import ConfigError
from tests.unit.virtual_node.kubelet.conftest import Node, Rig, Token
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
    """Ask for a stream; gives the head of the answer and the connection."""
    reader, writer = await node.connect()
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: node", *headers, "", ""])
    writer.write(head.encode() + early)
    return await reader.readuntil(b"\r\n\r\n"), reader, writer


async def echo(exchange: Exchange) -> None:
    """Switch, then send back whatever comes, until the client ends."""
    await exchange.switch(extra=b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nAudit-Id: 1\r\n")
    while data := await exchange.reader.read(65536):
        exchange.writer.write(data)
        await exchange.writer.drain()


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a client's connection."""
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the connection ends, however it ends."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def open_streams(verb: str = "exec") -> float:
    """What the gauge says."""
    return REGISTRY.get_sample_value("virtual_node_kubelet_streams", {"verb": verb}) or 0.0


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
async def test_bytes_behind_the_heads_are_not_lost(rig: Rig, method: str, headers: tuple[str, ...]) -> None:
    """What comes in the same packet as a head arrives, in order, on both sides and for both protocols."""

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
    """Even bytes that look like a further request reach the lower side as they are."""
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


async def test_a_stream_on_a_used_connection(rig: Rig) -> None:
    """A connection that served an ordinary request can still become a stream."""
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


async def test_a_refusal_of_the_lower_cluster_is_relayed(rig: Rig) -> None:
    """The lower apiserver's own words reach kubectl: status, type and body pass."""
    status = {"kind": "Status", "message": "container not running", "code": 400}

    async def script(exchange: Exchange) -> None:
        body = json.dumps(status).encode()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        exchange.writer.write(head.encode() + body)
        await exchange.read_to_end()

    async with rig(script) as (_lower, node):
        code, head, body = await node.ask(EXEC, *SPDY, method="POST")
        assert code == 400
        assert "Content-Type: application/json" in head
        assert json.loads(body) == status


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ngon\r\n5;x=y\r\ne gon\r\n1\r\ne\r\n0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\ngone gone",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\ngone gone and more",
    ],
)
async def test_a_refusal_of_any_shape_is_relayed(rig: Rig, answer: bytes) -> None:
    """Chunked, until the end, or with a length."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(answer)
        await exchange.writer.drain()

    async with rig(script) as (_lower, node):
        code, _, body = await node.ask(EXEC, *SPDY, method="POST")
        assert (code, body) == (404, "gone gone")


async def test_rejected_credentials_are_renewed_once_and_never_the_users_fault(rig: Rig) -> None:
    """A 401 below is asked again with fresh credentials; a second one becomes a 500 that says so."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        await exchange.read_to_end()

    async with rig(script) as (lower, node):
        code, _, body = await node.ask(EXEC, *SPDY, method="POST")
        tokens = [exchange.header("Authorization") for exchange in lower.exchanges]
    assert code == 500
    assert body == 'cluster "east" does not accept the virtual node\'s credentials'
    assert tokens == [["Bearer lower-0"], ["Bearer lower-1"]]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"",
        b"HTTP/1.1 101 Switching",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
    ],
)
async def test_what_is_no_answer_is_a_clear_error(rig: Rig, answer: bytes) -> None:
    """A lower side that speaks something else, or hangs up, is named in one line."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(answer)
        await exchange.writer.drain()

    async with rig(script) as (_lower, node):
        code, _, body = await node.ask(EXEC, *SPDY, method="POST")
    assert code == 500
    assert body.startswith('cluster "east" cannot be reached: ')
    assert "\n" not in body


async def test_a_lower_cluster_that_is_away_is_a_clear_error(rig: Rig) -> None:
    """Connection refused, with the cluster's name."""
    async with rig(echo) as (lower, node):
        lower.close()
        code, _, body = await node.ask(EXEC, *SPDY, method="POST")
    assert code == 500
    assert body.startswith('cluster "east" cannot be reached: ')


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("/exec/shop/other/main?output=1", 404, "pod does not exist"),
        ("/exec/other/web-1/main?output=1", 404, "pod does not exist"),
        ("/exec/shop/web-1/u-2/main?output=1", 404, "pod does not exist"),
        ("/exec/shop/web-1/nope?output=1", 404, 'container not found ("nope")'),
        ("/exec/shop/web-1/a%0D%0AX:%20y?output=1", 404, 'container not found ("a\\r\\nX: y")'),
        ("/attach/shop/web-1/nope?output=1", 404, "container nope not found in pod web-1_shop"),
        ("/portForward/shop/other", 404, "pod does not exist"),
        ("/exec/shop/web-1/main?command=ls", 400, "you must specify at least 1 of stdin, stdout, stderr"),
    ],
)
async def test_unknown_pods_and_containers(rig: Rig, target: str, code: int, text: str) -> None:
    """The kubelet's own words, and the lower cluster is not even asked."""
    async with rig(echo) as (lower, node):
        status, _, body = await node.ask(target, *SPDY, method="POST")
        assert (status, body) == (code, text)
        assert lower.exchanges == []


async def test_a_request_without_upgrade_is_refused(rig: Rig) -> None:
    """An exec over plain HTTP makes no sense."""
    async with rig(echo) as (_lower, node):
        required = (400, "Upgrade request required: SPDY/3.1 or websocket")
        assert (await node.ask(EXEC))[::2] == required
        h2c = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAA")
        assert (await node.ask(EXEC, *h2c))[::2] == required
        code, _, text = await node.ask(EXEC, *SPDY, "Content-Length: 3", method="POST")
        assert (code, text) == (400, "an upgrade request has no body")


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", EXEC), ("GET", "/containerLogs/shop/web-1/main"), ("POST", "/run/shop/web-1/main?cmd=ls")],
)
async def test_credentials_that_cannot_be_had_are_a_clear_error(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str, target: str
) -> None:
    """A token file that is gone, say: the reason is told, and whose it is."""

    async def fail(_self: Token, *, refresh: bool = False) -> None:
        raise ConfigError("tokenFile /east/token: No such file or directory")

    monkeypatch.setattr(Token, "headers", fail)
    async with rig(echo) as (_lower, node):
        answer = await node.ask(target, *(SPDY if target == EXEC else ()), method=method)
        assert answer[::2] == (
            500,
            'cluster "east" cannot be reached: tokenFile /east/token: No such file or directory',
        )


async def test_a_client_that_leaves_ends_the_lower_side(rig: Rig) -> None:
    """Without a client the command's connection is closed, and the gauge returns to nought."""
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


async def test_a_client_that_leaves_before_the_answer_ends_the_lower_side(rig: Rig) -> None:
    """The upgrade under way is given up."""

    async def script(exchange: Exchange) -> None:
        await exchange.read_to_end()

    async with rig(script) as (lower, node):
        _, writer = await node.connect()
        writer.write(
            f"POST {EXEC} HTTP/1.1\r\nHost: node\r\n".encode() + "\r\n".join(SPDY).encode() + b"\r\n\r\n"
        )
        exchange = await lower.exchange()
        await closed(writer)
        await exchange.ended.wait()
        await node.server.streams._wait_empty()


async def test_a_lower_side_that_leaves_ends_the_client(rig: Rig) -> None:
    """After the last byte the client's connection ends."""

    async def script(exchange: Exchange) -> None:
        await exchange.switch(behind=b"last words")

    async with rig(script) as (_lower, node):
        _, reader, writer = await upgrade(node)
        assert await reader.read() == b"last words"
        await closed(writer)


async def test_half_closing_passes_on_where_it_exists(rig: Rig, wire: str) -> None:
    """On plain TCP the lower side hears the end of stdin and can still answer; TLS has no such thing."""

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


async def test_a_big_transfer_arrives_whole_both_ways_at_once(rig: Rig) -> None:
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
        await exchange.read_to_end()

    async with rig(script) as (_lower, node):
        _, reader, writer = await upgrade(node)
        _, above = await asyncio.gather(send(writer), receive(reader))
        assert above == expected
        assert await below == expected
        await closed(writer)


async def test_a_slow_reader_holds_the_sender_back_and_loses_nothing(rig: Rig) -> None:
    """A sender of 64 MiB stalls long before its end; its last byte still arrives after it has left."""
    sent = 0
    stalled = asyncio.Event()
    total = 64

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.switch()
        exchange.writer.transport.set_write_buffer_limits(high=1)
        for _ in range(total):
            exchange.writer.write(bytes(1 << 20))
            try:
                async with asyncio.timeout(0.5):
                    await exchange.writer.drain()
            except TimeoutError:
                stalled.set()
                await exchange.writer.drain()
            sent += 1

    async with rig(script) as (_lower, node):
        reader, writer = await node.connect()
        head = f"POST {EXEC} HTTP/1.1\r\nHost: node\r\n".encode() + "\r\n".join(SPDY).encode() + b"\r\n\r\n"
        writer.write(head)
        # StreamReader stops reading from its socket at twice its limit of 1 MiB.
        await stalled.wait()
        assert sent < 32
        await reader.readuntil(b"\r\n\r\n")
        received = 0
        while data := await reader.read(1 << 20):
            received += len(data)
        assert received == total << 20
        await closed(writer)


async def test_stopping_gives_streams_their_grace_and_then_ends_them(rig: Rig) -> None:
    """Within the grace a stream goes on; afterwards both sides are closed, and stopping returns."""
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


async def test_stopping_does_not_wait_when_nothing_is_open(rig: Rig) -> None:
    """The grace is for streams, not for its own sake."""
    async with rig(echo, grace=60.0) as (_, node):
        reader, writer = await node.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nok")
        _, idle = await node.connect()
        async with asyncio.timeout(5):
            await node.server.stop()
        await closed(writer)
        await closed(idle)
