"""The start of a connection: handshakes, heads that are late, long or invalid."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import warnings
from dataclasses import replace

import pytest

from controller_runtime.serving.connections import Connections
from controller_runtime.tls.key_pairs import make_ca, sign
from controller_runtime.tls.reloader import CertificateReloader
from tests.unit.virtual_node.kubelet.conftest import Pki, Rig, Serve
from tests.unit.virtual_node.kubelet.stream_client import closed, echo, upgrade
from virtual_node.kubelet.auth import Authenticator
from virtual_node.kubelet.server import connection_limits


async def test_a_head_may_arrive_byte_by_byte(serve: Serve) -> None:
    async with serve(1) as node:
        reader, writer = await node.connect()
        for byte in b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await reader.read()).endswith(b"\r\n\r\nok")
        writer.close()


async def test_a_connection_serves_many_requests(serve: Serve) -> None:
    """Scrapers reuse theirs; pipelined requests are answered in order."""
    async with serve(1) as node:
        reader, writer = await node.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n" * 3)
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\nok")
        writer.close()


@pytest.mark.parametrize("wire", ["tls"])
async def test_only_a_verified_client_may_send_a_long_head(serve: Serve, pki: Pki) -> None:
    """The API server may send nearly a megabyte of URL; without a client certificate the limit is 16 KiB."""
    target = "/exec/shop/web-1/nope?output=1&command="
    known = pki.client_context(sign(pki.ca, "kube-apiserver", usage="client"))
    async with serve(1) as node:
        code, _, body = await node.ask(target + "x" * 1_000_000, method="POST", context=known)
        assert (code, body) == (404, 'container not found ("nope")')
        assert (await node.ask(target + "x" * 1_100_000, method="POST", context=known))[0] == 431
        assert (await node.ask(target + "x" * 15_000, method="POST"))[0] == 404
        assert (await node.ask(target + "x" * 17_000, method="POST"))[0] == 431


@pytest.mark.parametrize("wire", ["tls"])
async def test_flood_of_idle_connections_locks_no_client_out(rig: Rig, pki: Pki) -> None:
    """The API server is answered, an open stream continues, and the oldest idle connections are closed."""
    # Without a time limit, only the limit of strangers closes them.
    limits = replace(connection_limits(total=40, strangers=20), first_request=3600.0)
    connections = Connections("flooded", limits)
    async with rig(echo, connections=connections) as (_, node):
        _, stream, writer = await upgrade(node)
        flood = [await node.connect() for _ in range(60)]
        known = pki.client_context(sign(pki.ca, "kube-apiserver", usage="client"))
        for _ in range(3):
            assert (await node.ask("/pods", context=known))[0] == 200
        writer.write(b"still here")
        assert await stream.readexactly(10) == b"still here"
        assert 15 < len(connections) <= 21
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                assert await flood[0][0].read() == b""
        for _, idle in flood:
            idle.close()
        await closed(writer)


async def test_reads_nothing_after_the_first_head_of_a_refused_client(serve: Serve) -> None:
    """A second head could be as long as those of authorized clients; the connection ends with the response."""
    async with serve(1, authenticator=Authenticator(None)) as node:
        reader, writer = await node.connect()
        writer.write(b"GET /pods HTTP/1.1\r\nHost: node\r\n\r\n" * 2)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        writer.close()


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-x\r\n\r\n", b"\r\n\r\n\r\n\r\n"]
)
async def test_invalid_bytes_do_not_affect_other_clients(serve: Serve, garbage: bytes) -> None:
    """Plain bytes at the TLS port, TLS bytes at the plain one."""
    async with serve(1) as node:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
        writer.write(garbage)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        assert (await node.ask("/healthz"))[0] == 200


@pytest.mark.parametrize("wire", ["tls"])
async def test_tls_1_2_is_the_minimum(serve: Serve, pki: Pki) -> None:
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


@pytest.mark.parametrize("wire", ["tls"])
async def test_a_renewed_authority_counts_at_the_next_connection(serve: Serve, pki: Pki) -> None:
    """Certificate and client CA are read again; an older connection ends with its next response."""
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
