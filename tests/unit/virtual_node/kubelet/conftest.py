"""A kubelet API between a client's raw socket and a scripted lower apiserver."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.tls.key_pairs import make_ca, sign
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import CertificateReloader
from tests.serving import client_context, server_context
from tests.unit.virtual_node.kubelet.lower import Everybody, LowerServer, OnePod, Script, Token
from virtual_node.kubelet.server import KubeletServer


@dataclass(frozen=True)
class Pki:
    """One authority and what it signed."""

    ca: KeyPair
    server: KeyPair

    def server_context(self) -> ssl.SSLContext:
        return server_context(self.server)

    def client_context(self, pair: KeyPair | None = None) -> ssl.SSLContext:
        """A client's context, with its own certificate where it has one."""
        return client_context(self.ca, pair)


@pytest.fixture(scope="session")
def pki() -> Pki:
    """An authority with a certificate for loopback."""
    ca = make_ca("test-ca")
    return Pki(ca, sign(ca, "localhost", hosts=["127.0.0.1", "localhost", "lower.example"]))


@pytest.fixture(params=["tcp", "tls"])
def wire(request: pytest.FixtureRequest) -> str:
    """Runs a test without TLS and with TLS on both sides."""
    return str(request.param)


@dataclass
class Node:
    """A served kubelet API and its address."""

    server: KubeletServer
    backend: OnePod
    client_context: ssl.SSLContext | None

    async def connect(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.server.port, ssl=context or self.client_context, limit=2**20
        )

    async def ask(
        self, target: str, *headers: str, method: str = "GET", context: ssl.SSLContext | None = None
    ) -> tuple[int, str, str]:
        """Send one request; return status, head and body."""
        reader, writer = await self.connect(context)
        lines = [f"{method} {target} HTTP/1.1", "Host: node", "Connection: close", *headers, "", ""]
        writer.write("\r\n".join(lines).encode())
        raw = await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        head, _, body = raw.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head.lower():
            body = unchunk(body)
        return int(head.split(b" ")[1]), head.decode(), body.decode()


def unchunk(body: bytes) -> bytes:
    """Undo chunked transfer encoding; a truncated body stays truncated."""
    whole = bytearray()
    at = 0
    while at < len(body):
        end = body.index(b"\r\n", at)
        length = int(body[at:end], 16)
        whole += body[end + 2 : end + 2 + length]
        at = end + 2 + length + 2
    return bytes(whole)


Serve = Callable[..., AbstractAsyncContextManager[Node]]
Rig = Callable[..., AbstractAsyncContextManager[tuple[LowerServer, Node]]]


@pytest.fixture
def serve(pki: Pki, wire: str) -> Serve:
    """Serves a kubelet API in front of the lower server at a port."""

    @asynccontextmanager
    async def serve(lower_port: int, **options: Any) -> AsyncIterator[Node]:
        context, tls = None, None
        if wire == "tls":
            context = pki.client_context()
            tls = CertificateReloader.from_pair(pki.server, client_ca=pki.ca.certificate)
        url = f"{'https' if tls else 'http'}://127.0.0.1:{lower_port}/prefix"
        config = ConnectionConfig(url, ssl_context=context, credentials=Token(), source="test")
        defaults = {
            "authenticator": Everybody(),
            "authorizer": None,
            "grace": 0.0,
            "stream_idle_timeout": 60.0,
        }
        async with Client(config, cluster="east") as client:
            backend = OnePod(client)
            server = KubeletServer(
                backend, address="127.0.0.1", port=0, tls=tls, node_name="vnode", **{**defaults, **options}
            )
            await server.start()
            try:
                yield Node(server, backend, context)
            finally:
                await server.stop()

    return serve


@pytest.fixture
def rig(serve: Serve, pki: Pki, wire: str) -> Rig:
    """A scripted lower apiserver and a kubelet API in front of it."""

    @asynccontextmanager
    async def rig(script: Script, **options: Any) -> AsyncIterator[tuple[LowerServer, Node]]:
        context = pki.server_context() if wire == "tls" else None
        async with LowerServer(script, tls=context) as lower, serve(lower.port, **options) as node:
            yield lower, node

    return rig
