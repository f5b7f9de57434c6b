"""Kubeconfigs for tests, and the identity that a server sees."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from controller_runtime.auth import kubeconfig
from controller_runtime.tls.key_pairs import make_ca, sign
from tests.serving import server_context

CA = make_ca("test-ca")


PAIR = sign(CA, "someone", usage="client")


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


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide kubeconfigs, cluster and proxies of the machine that runs the tests."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("KUBERNETES_") or name == "KUBECONFIG":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kubeconfig, "_ACCOUNT", tmp_path / "account")
