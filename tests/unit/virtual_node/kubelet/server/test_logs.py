"""Container logs on their way from the lower cluster to the client."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import parse_qsl, urlsplit

import pytest

from controller_runtime.client import requests
from tests.thorough import size
from tests.unit.virtual_node.kubelet.conftest import Rig, unchunk
from tests.unit.virtual_node.kubelet.lower import Exchange, Sender, rest_of

LOGS = "/containerLogs/shop/web-1/main"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk on the wire."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def answering(status: int, body: bytes) -> object:
    """Return a script that answers with a status and a body."""

    async def script(exchange: Exchange) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        exchange.writer.write(head.encode() + body)
        await exchange.writer.drain()

    return script


async def two_lines(exchange: Exchange) -> None:
    """Answer with two lines."""
    exchange.writer.write(CHUNKED + chunk(b"one\n") + chunk(b"two\n") + chunk(b""))
    await rest_of(exchange.reader)


async def test_a_log_is_passed_on(rig: Rig) -> None:
    """The lower pod's log, requested with the node's options under the lower names."""
    async with rig(two_lines) as (lower, node):
        code, head, body = await node.ask(
            LOGS + "?tailLines=2&timestamps=true&sinceTime=2026-01-02T03:04:05%2B01:00"
        )
        assert (code, body) == (200, "one\ntwo\n")
        assert "Content-Type: text/plain" in head
        exchange = await lower.exchange()
    url = urlsplit(exchange.request_line.split(" ")[1])
    assert url.path == "/prefix/api/v1/namespaces/t-shop/pods/web-1-x/log"
    assert parse_qsl(url.query) == [
        ("container", "main"),
        ("timestamps", "true"),
        ("tailLines", "2"),
        ("sinceTime", "2026-01-02T03:04:05+01:00"),
    ]
    assert exchange.header("Authorization") == ["Bearer lower-0"]


async def test_lines_are_passed_on_at_once(rig: Rig) -> None:
    """With follow nothing is buffered; the head is sent before the first line."""
    line = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(CHUNKED)
        await line.wait()
        exchange.writer.write(chunk(b"first\n"))
        await rest_of(exchange.reader)

    async with rig(script) as (_lower, node):
        reader, writer = await node.connect()
        writer.write(f"GET {LOGS}?follow=true HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        line.set()
        assert await reader.readuntil(b"first\n\r\n") == b"6\r\nfirst\n\r\n"
        writer.close()


async def test_a_disconnected_client_ends_the_lower_request(rig: Rig) -> None:
    """An interrupted ``kubectl logs -f`` leaves no lower connection open."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(CHUNKED + chunk(b"line\n"))
        await rest_of(exchange.reader)

    async with rig(script) as (lower, node):
        reader, writer = await node.connect()
        writer.write(f"GET {LOGS}?follow=true HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        await reader.readuntil(b"line\n")
        assert len(node.server.streams) == 1
        writer.close()
        await (await lower.exchange()).ended.wait()
        await node.server.streams._wait_empty()


async def test_a_slow_reader_blocks_the_log(rig: Rig) -> None:
    """A log of 64 MiB without a reader stays in the lower cluster, not in memory."""
    sender, mebibytes = Sender(), size(40, 64)

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(CHUNKED)
        await sender.send(exchange.writer, chunk(bytes(1 << 20)), times=mebibytes)
        exchange.writer.write(chunk(b""))
        await exchange.writer.drain()
        await rest_of(exchange.reader)

    async with rig(script) as (_lower, node):
        reader, writer = await node.connect()
        writer.write(f"GET {LOGS} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode())
        await sender.stalled.wait()
        assert sender.sent < 32
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.read()
        assert len(unchunk(body)) == mebibytes << 20
        writer.close()


async def test_a_truncated_log_does_not_look_complete(rig: Rig) -> None:
    """When the lower cluster fails in the middle, the client sees a broken transfer."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(CHUNKED + chunk(b"line\n"))
        await exchange.writer.drain()
        await exchange.reader.read(0)
        exchange.writer.transport.abort()

    async with rig(script) as (_lower, node):
        reader, writer = await node.connect()
        writer.write(f"GET {LOGS} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        try:
            whole = await reader.read()
        except ConnectionError:
            whole = b""
        assert not whole.endswith(b"0\r\n\r\n")
        writer.close()


@pytest.mark.parametrize(
    ("status", "code"), [(400, 400), (403, 403), (404, 400), (422, 400), (429, 429), (500, 500), (503, 500)]
)
async def test_the_lower_clusters_message_reaches_the_user(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    """With a code for which the upper apiserver prints a kubelet's message."""
    # A server that sheds load gets another request while there is time, which is none here.
    monkeypatch.setattr(requests, "_PAUSES", (3600.0, 3600.0))
    message = 'container "main" in pod "web-1-x" is waiting to start: ContainerCreating'
    body = json.dumps({"kind": "Status", "message": message, "code": status}).encode()
    async with rig(answering(status, body)) as (_lower, node):
        assert (await node.ask(LOGS))[::2] == (code, message)


async def test_rejected_credentials_are_no_error_of_the_user(rig: Rig) -> None:
    """A 401 of the lower cluster must not make kubectl request a login."""
    async with rig(answering(401, b"{}")) as (_lower, node):
        code, _, body = await node.ask(LOGS)
    assert code == 500
    assert body.startswith('cluster "east" does not accept the virtual node\'s credentials')


async def test_an_unreachable_lower_cluster_is_a_clear_error(rig: Rig) -> None:
    """Connection refused, with the cluster's name."""
    async with rig(two_lines) as (lower, node):
        lower.close()
        code, _, body = await node.ask(LOGS)
    assert code == 500
    assert body.startswith('cluster "east" cannot be reached: ')


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("/containerLogs/shop/other/main", 404, 'pod "other" does not exist'),
        ("/containerLogs/shop/web-1/nope", 404, 'container "nope" not found in pod "web-1"'),
        (
            LOGS + "?tailLines=x",
            400,
            '{"message": "Unable to decode query: tailLines: must be a whole number."}',
        ),
        (
            LOGS + "?limitBytes=0",
            422,
            '{"message": "Invalid request: limitBytes: must be greater than or equal to 1."}',
        ),
        ("/containerLogs/shop/other/main?limitBytes=0", 422, None),
    ],
)
async def test_invalid_requests_are_refused(rig: Rig, target: str, code: int, text: str | None) -> None:
    """With the kubelet's order and messages: options first, then the pod, then the container."""
    async with rig(two_lines) as (lower, node):
        status, _, body = await node.ask(target)
        assert status == code
        assert text is None or body == text
        assert lower.exchanges == []


async def test_stopping_ends_a_followed_log(rig: Rig) -> None:
    """After the grace period, with a visible error."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(CHUNKED + chunk(b"line\n"))
        await rest_of(exchange.reader)

    async with rig(script) as (lower, node):
        reader, writer = await node.connect()
        writer.write(f"GET {LOGS}?follow=true HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        await reader.readuntil(b"line\n\r\n")
        await node.server.stop()
        assert await reader.read() == b""
        await (await lower.exchange()).ended.wait()
        writer.close()
