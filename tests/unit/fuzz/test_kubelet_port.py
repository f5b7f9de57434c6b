"""Raw bytes at the kubelet port: a clear response or a closed connection, and no other lower path than the pod's."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from tests.fuzz.mutation import hostile
from tests.thorough import IS_THOROUGH
from tests.unit.virtual_node.kubelet.lower import Everybody, Exchange, LowerServer, OnePod, Token
from virtual_node.kubelet.server import KubeletServer

_INPUTS = 200 if IS_THOROUGH else 50
_PATIENCE = 0.15
"""Seconds for the first bytes of a response; half of the inputs are incomplete requests and get none."""
_ALLOWED = re.compile(
    r"(GET|POST) /prefix/api/v1/namespaces/t-shop/pods/web-1-x/(exec|attach|portforward|log)(\?[!-~]*)? HTTP/1\.1"
)
_UPGRADE = b"Host: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
_SEEDS = (
    b"POST /exec/shop/web-1/main?command=sh&command=-c&input=1&output=1&tty=1 HTTP/1.1\r\n" + _UPGRADE,
    b"GET /attach/shop/web-1/u-1/main?output=1 HTTP/1.1\r\n" + _UPGRADE + b"early bytes",
    b"POST /portForward/shop/web-1?port=80 HTTP/1.1\r\n" + _UPGRADE,
    b"GET /containerLogs/shop/web-1/main?tailLines=3&follow=true HTTP/1.1\r\nHost: node\r\n\r\n",
    b"POST /run/shop/web-1/main?cmd=ls HTTP/1.1\r\nHost: node\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /pods HTTP/1.1\r\nHost: node\r\n\r\nGET /healthz HTTP/1.1\r\nHost: node\r\n\r\n",
)


class Rig:
    """A kubelet port in front of a lower API server that refuses everything and records its requests."""

    def __init__(self, lower: LowerServer, server: KubeletServer) -> None:
        self.lower, self.server = lower, server

    async def send(self, text: bytes) -> bytes:
        """Send bytes and end the sending side; return the response."""
        answer = b""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            writer.write(text)
            # The end of the sending side cancels a request, so wait for a response first.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    answer = await reader.read(2**16)
            writer.write_eof()
            async with asyncio.timeout(10):
                return answer + await reader.read()
        except ConnectionError:
            return answer
        finally:
            writer.close()


async def _refuse(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
    await exchange.writer.drain()


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    """The two servers, on loopback without TLS."""
    async with LowerServer(_refuse) as lower:
        config = ConnectionConfig(f"http://127.0.0.1:{lower.port}/prefix", credentials=Token(), source="test")
        async with Client(config, cluster="east") as client:
            server = KubeletServer(
                OnePod(client), address="127.0.0.1", port=0, tls=None, authenticator=Everybody(), authorizer=None,
                node_name="vnode", stream_idle_timeout=5.0, grace=0.0,
            )  # fmt: skip
            await server.start()
            try:
                yield Rig(lower, server)
            finally:
                await server.stop()


async def test_hostile_bytes_reach_no_other_lower_path(rig: Rig, caplog: pytest.LogCaptureFixture):
    """All lower requests are for this pod, with the lower credentials once, and no handler fails."""
    for number in range(_INPUTS):
        rng = random.Random(number)
        text = hostile(rng.choice(_SEEDS), rng)
        answer = await rig.send(text)
        assert b"internal error" not in answer, f"input {number}: {text[:200]!r}"
        assert answer[:5] in {b"", b"HTTP/"}, f"input {number}: {answer[:60]!r}"
    for exchange in rig.lower.exchanges:
        assert _ALLOWED.fullmatch(exchange.request_line), exchange.request_line
        assert len(exchange.header("Authorization")) == 1
        assert exchange.header("Authorization")[0].startswith("Bearer lower-")
        assert not [name for name, _ in exchange.headers if name.lower().startswith("impersonate")]
    assert len(rig.lower.exchanges) > _INPUTS / 20, "the seeds no longer get through"
    assert b" 200 " in await rig.send(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
