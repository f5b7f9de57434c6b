"""Streams that fail before they start, and the errors of their clients."""

from __future__ import annotations

import json

import pytest

from controller_runtime.errors import ConfigError
from tests.unit.virtual_node.kubelet.conftest import Rig
from tests.unit.virtual_node.kubelet.lower import Exchange, Token, rest_of
from tests.unit.virtual_node.kubelet.stream_client import EXEC, SPDY, echo


async def test_a_refusal_of_the_lower_cluster_is_relayed(rig: Rig) -> None:
    """Status, type and body reach kubectl."""
    status = {"kind": "Status", "message": "container not running", "code": 400}

    async def script(exchange: Exchange) -> None:
        body = json.dumps(status).encode()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        exchange.writer.write(head.encode() + body)
        await rest_of(exchange.reader)

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
async def test_a_refusal_of_any_framing_is_relayed(rig: Rig, answer: bytes) -> None:
    """Chunked, until the end, or with a length."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(answer)
        await exchange.writer.drain()

    async with rig(script) as (_lower, node):
        code, _, body = await node.ask(EXEC, *SPDY, method="POST")
        assert (code, body) == (404, "gone gone")


async def test_rejected_credentials_are_renewed_once_and_no_error_of_the_user(rig: Rig) -> None:
    """A lower 401 is retried with fresh credentials; a second one becomes a 500 with the reason."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        await rest_of(exchange.reader)

    async with rig(script) as (lower, node):
        code, _, body = await node.ask(EXEC, *SPDY, method="POST")
        tokens = [exchange.header("Authorization") for exchange in lower.exchanges]
    assert code == 500
    assert body.startswith('cluster "east" does not accept the virtual node\'s credentials. ')
    assert "virtual-node check" in body
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
async def test_an_invalid_response_is_a_clear_error(rig: Rig, answer: bytes) -> None:
    """Another protocol, or a closed connection, is described in one line."""

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(answer)
        await exchange.writer.drain()

    async with rig(script) as (_lower, node):
        code, _, body = await node.ask(EXEC, *SPDY, method="POST")
    assert code == 500
    assert body.startswith('cluster "east" cannot be reached: ')
    assert "\n" not in body


async def test_an_unreachable_lower_cluster_is_a_clear_error(rig: Rig) -> None:
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
    """The kubelet's own messages, without a request to the lower cluster."""
    async with rig(echo) as (lower, node):
        status, _, body = await node.ask(target, *SPDY, method="POST")
        assert (status, body) == (code, text)
        assert lower.exchanges == []


async def test_a_request_without_upgrade_is_refused(rig: Rig) -> None:
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
async def test_unavailable_credentials_are_a_clear_error(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str, target: str
) -> None:
    """For example a missing token file: the reason and the cluster are named."""

    async def fail(_self: Token, *, refresh: bool = False) -> None:
        raise ConfigError("tokenFile /east/token: No such file or directory")

    monkeypatch.setattr(Token, "headers", fail)
    async with rig(echo) as (_lower, node):
        answer = await node.ask(target, *(SPDY if target == EXEC else ()), method=method)
        assert answer[::2] == (
            500,
            'cluster "east" cannot be reached: tokenFile /east/token: No such file or directory',
        )
