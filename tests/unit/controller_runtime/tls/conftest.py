"""A certificate authority, a pair that it has signed, and an echo server over TLS with its clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from controller_runtime.tls import key_pairs
from controller_runtime.tls.pem import KeyPair


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    """An echo server on loopback; yields its port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(100):
                peer = writer.get_extra_info("peercert")
                writer.write(str((peer or {}).get("subject", "nobody")).encode() if data == b"who" else data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def dial(port: int, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def ask(port: int, context: ssl.SSLContext, question: bytes = b"ping") -> tuple[bytes, int]:
    """Make one exchange over a new connection; return the answer, and the serial number of the server's certificate."""
    reader, writer = await dial(port, context)
    try:
        writer.write(question)
        answer = await reader.read(1000)
        if not answer:
            raise ConnectionResetError("closed without an answer")
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return answer, x509.load_der_x509_certificate(der).serial_number
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def serial(pair: KeyPair) -> int:
    return x509.load_pem_x509_certificate(pair.certificate).serial_number


@pytest.fixture
def ca() -> KeyPair:
    """A certificate authority."""
    return key_pairs.make_ca("test-ca")


@pytest.fixture
def pair(ca: KeyPair) -> KeyPair:
    """A server's pair signed by the CA."""
    return key_pairs.sign(ca, "node", hosts=["node.example", "127.0.0.1"])


@pytest.fixture
def paths(tmp_path: Path, pair: KeyPair) -> tuple[Path, Path]:
    """The server's pair as two files."""
    paths = tmp_path / "tls.crt", tmp_path / "tls.key"
    pair.write(*paths)
    return paths
