"""The first moments of a connection: handshakes, heads that are late, long or no heads at all."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import warnings

import pytest

from controller_runtime.certificates import CertificateReloader, make_ca, sign
from tests.unit.virtual_node.kubelet.conftest import Pki, Serve
from virtual_node.kubelet import front
from virtual_node.kubelet.front import Front, Gate
from virtual_node.kubelet.splice import Connection


async def test_a_head_may_come_byte_by_byte(serve: Serve) -> None:
    """However a head is cut, it is one head."""
    async with serve(1) as node:
        reader, writer = await node.connect()
        for byte in b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await reader.read()).endswith(b"\r\n\r\nok")
        writer.close()


async def test_a_connection_serves_many_requests(serve: Serve) -> None:
    """Scrapers keep theirs; pipelined requests are answered in order."""
    async with serve(1) as node:
        reader, writer = await node.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n" * 3)
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\nok")
        writer.close()


async def test_a_long_command_line_passes_and_an_endless_head_does_not(serve: Serve) -> None:
    """Nearly a megabyte of URL is a request; more than a megabyte of head is refused unread."""
    async with serve(1) as node:
        command = "x" * 1_000_000
        code, _, body = await node.ask(f"/exec/shop/web-1/nope?output=1&command={command}", method="POST")
        assert (code, body) == (404, 'container not found ("nope")')
        reader, writer = await node.connect()
        writer.write(b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * (front.MAX_HEAD + 1))
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 431 ")
        writer.close()


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-x\r\n\r\n", b"\r\n\r\n\r\n\r\n"]
)
async def test_garbage_harms_nobody(serve: Serve, garbage: bytes) -> None:
    """Plain bytes at the TLS port, TLS bytes at the plain one: the next client is served as ever."""
    async with serve(1) as node:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
        writer.write(garbage)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        assert (await node.ask("/healthz"))[0] == 200


@pytest.mark.parametrize("wire", ["tls"])
async def test_tls_1_2_is_the_least(serve: Serve, pki: Pki) -> None:
    """Older versions end in the handshake."""
    async with serve(1) as node:
        context = pki.client_context()
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await node.ask("/healthz", context=context))[0] == 200
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        # Asyncio resets the connection where it could send an alert.
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await node.connect(context)


@pytest.mark.looptime
async def test_a_connection_that_says_nothing_is_dropped() -> None:
    """Half a head keeps a connection for half a minute, no longer."""
    gate = Gate(asyncio.Protocol, lambda: None)
    transport = _Transport()
    half = Front(gate)
    half.begin(Connection(transport, transport))
    half.data_received(b"GET / HT")
    await asyncio.sleep(front.HEAD_TIMEOUT - 1)
    assert transport.aborts == 0
    await asyncio.sleep(2)
    assert transport.aborts == 1
    half.connection_lost(None)
    assert not gate.fronts


async def test_what_comes_before_the_handshake_is_announced_is_kept() -> None:
    """A client that sends its request with the end of its handshake is answered."""
    got: list[bytes] = []

    class Handler(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            got.append(data)

    gate = Gate(Handler, lambda: None)
    transport = _Transport()
    early = Front(gate)
    early.data_received(b"GET / HTTP/1.1\r\n\r\nmore")
    early.begin(Connection(transport, transport))
    assert got == [b"GET / HTTP/1.1\r\n\r\nmore"]
    lost = Front(gate)
    lost.data_received(b"GET /")
    lost.connection_lost(None)
    lost.begin(Connection(transport, transport))
    assert not gate.fronts


@pytest.mark.parametrize("wire", ["tls"])
async def test_a_renewed_authority_counts_at_the_next_connection(serve: Serve, pki: Pki) -> None:
    """Certificate and client CA are asked for anew; a connection made before ends with its next answer."""
    other_ca = make_ca("other")
    other = sign(other_ca, "localhost", hosts=["127.0.0.1"])
    mine = sign(pki.ca, "me", usage="client")
    trusting = ssl.create_default_context(cadata=other_ca.certificate.decode())
    request = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
    async with serve(1) as node:
        reader, writer = await node.connect(pki.client_context(mine))
        writer.write(request)
        await reader.readuntil(b"\r\n\r\nok")
        certificate = node.server._tls
        assert isinstance(certificate, CertificateReloader)
        certificate.trust(other_ca.certificate)
        certificate.replace(other)
        assert (await node.ask("/healthz", context=trusting))[0] == 200
        with pytest.raises(ssl.SSLError):
            await node.connect()
        writer.write(request)
        assert b"\r\nConnection: close\r\n" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b"ok"
        writer.close()


class _Transport(asyncio.Transport):
    """Nothing but what a front calls."""

    def __init__(self) -> None:
        super().__init__()
        self.aborts = 0

    def abort(self) -> None:
        self.aborts += 1

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Ignore."""
