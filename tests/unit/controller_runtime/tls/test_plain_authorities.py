"""CAs without identifiers of keys, such as those of EKS, which Python >= 3.13 refuses by default."""

from __future__ import annotations

import base64
import functools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller_runtime.tls.pem import TlsMaterial
from swarm.worker import certificates as worker
from swarm.worker.identity import Settings
from tests.unit.controller_runtime.loopback import answers, plain_chain, reply, serve
from virtual_node.examine import path_reading


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python verify as strictly as Python 3.13 does."""
    made = ssl.create_default_context

    @functools.wraps(made)
    def strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = made(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.parametrize(
    "context_of",
    [
        lambda file: TlsMaterial("kubeconfig", file).context(),
        lambda file: worker.context(Settings(ca_file=str(file))),
    ],
)
async def test_clients_trust_them(context_of: Callable[[Path], ssl.SSLContext], tmp_path: Path) -> None:
    """In the virtual node, and in the workers of Swarms."""
    authority, pair = plain_chain("127.0.0.1")
    file = tmp_path / "ca.crt"
    file.write_bytes(authority.certificate)
    async with (
        serve(answers(reply({})), tls=True, pair=pair) as server,
        aiohttp.ClientSession() as session,
        session.get(server.url, ssl=context_of(file)) as answer,
    ):
        assert answer.status == 200
    async with serve(answers(reply({})), tls=True) as server, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get(server.url, ssl=context_of(file))


async def test_the_examination_of_a_webhook_trusts_them() -> None:
    """The API server does, so a webhook with such a certificate works."""
    authority, pair = plain_chain("127.0.0.1")
    async with serve(answers(reply({})), tls=True, pair=pair) as server:
        bundle = {"caBundle": base64.b64encode(authority.certificate).decode()}
        assert (await path_reading._answer(server.url, bundle)).code == 200
        assert (await path_reading._answer(server.url, {"caBundle": "bm8="})).code == 0
