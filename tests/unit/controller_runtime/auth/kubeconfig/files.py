"""Kubeconfigs for tests, and the identity that a server sees."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from pathlib import Path
from typing import Any

from controller_runtime.tls.key_pairs import make_ca, sign
from tests.kubeconfigs import whole, write
from tests.serving import server_context

CA = make_ca("test-ca")


PAIR = sign(CA, "someone", usage="client")


def write_token(path: Path, token: str) -> None:
    """Write a kubeconfig with that token, for an unreachable server."""
    write(path, whole(cluster={"server": "http://127.0.0.1:1"}, user={"token": token}))


def b64(data: bytes) -> str:
    """As kubeconfigs carry data."""
    return base64.b64encode(data).decode()


async def peer_name(client: ssl.SSLContext) -> str:
    """Return the identity that a TLS server sees in a client context's certificate."""
    return await asyncio.to_thread(_handshake, client)


def _handshake(client: ssl.SSLContext) -> str:
    server_pair = sign(CA, "server", hosts=["server.example"])
    server = server_context(server_pair, clients=CA.certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="server.example")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    certificate = theirs.getpeercert()
    assert certificate
    subject: Any = certificate["subject"]
    return str(dict(part[0] for part in subject)["commonName"])
