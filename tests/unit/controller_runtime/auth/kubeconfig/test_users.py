"""A kubeconfig's user and cluster become headers and a TLS context."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.credentials import StaticCredentials
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.tls.pem import TlsMaterial
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.auth.kubeconfig.conftest import CA, PAIR, b64, peer_name
from tests.unit.controller_runtime.loopback import answers, reply, serve


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({}, {}),
        ({"token": "t"}, {"Authorization": "Bearer t"}),
        ({"token": 12345}, {"Authorization": "Bearer 12345"}),
        ({"username": "a", "password": "b:c"}, {"Authorization": f"Basic {b64(b'a:b:c')}"}),
        ({"username": "a", "password": 7}, {"Authorization": f"Basic {b64(b'a:7')}"}),
        ({"token": "t", "username": "a", "password": "b"}, {"Authorization": "Bearer t"}),
    ],
)
async def test_static_headers(tmp_path: Path, user: dict[str, Any], expected: dict[str, str]) -> None:
    """Tokens and passwords become an Authorization header; a token comes before a password."""
    config = await kubeconfig.load(write(tmp_path / "k", whole(user=user)))
    assert await config.headers() == expected
    assert await config.headers(refresh=True) == expected


async def test_impersonation(tmp_path: Path) -> None:
    """``as`` and its groups are sent with every request as kubectl does, with the user's own credentials."""
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "u-1",
        "as-groups": ["admins", "system:masters"],
        "as-user-extra": {"example.com/scopes": ["view", "edit"]},
    }
    script = answers(*(reply({"metadata": {"name": "n"}}) for _ in range(3)))
    seen: list[list[tuple[str, str]]] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        seen.append(
            [(name, value) for name, value in request.headers.items() if name.startswith("Impersonate")]
        )
        assert request.headers["Authorization"] == "Bearer t"
        return await script(request)

    async with serve(remember) as server:
        path = write(tmp_path / "k", whole(cluster={"server": server.url}, user=user))
        async with Client(await kubeconfig.load(path), qps=0) as client:
            await client.get(resources.NODES, "n")
            await client.patch(resources.NODES, "n", {})
            await client.create(resources.NODES, {}, headers={"Impersonate-User": "system:node:n"})
    expected = [
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Group", "admins"),
        ("Impersonate-Group", "system:masters"),
        ("Impersonate-Extra-example.com%2Fscopes", "view"),
        ("Impersonate-Extra-example.com%2Fscopes", "edit"),
    ]
    assert seen == [expected, expected, [("Impersonate-User", "system:node:n")]]


async def test_no_user_at_all(tmp_path: Path) -> None:
    """A context may name no user, and a user may be null."""
    content = whole()
    content["users"][0]["user"] = None
    assert await (await kubeconfig.load(write(tmp_path / "k", content))).headers() == {}
    del content["contexts"][0]["context"]["user"], content["users"]
    assert await (await kubeconfig.load(write(tmp_path / "k", content))).headers() == {}


@pytest.mark.parametrize("as_data", [True, False], ids=["data", "files"])
async def test_client_certificate_and_authority(tmp_path: Path, *, as_data: bool) -> None:
    """Client certificate and CA, as data or as files beside the kubeconfig, make a TLS handshake both ways."""
    parts = {
        "certificate-authority": CA.certificate,
        "client-certificate": PAIR.certificate,
        "client-key": PAIR.key,
    }
    if as_data:
        fields = {f"{name}-data": b64(value) for name, value in parts.items()}
    else:
        fields = {name: f"pki/{name}.pem" for name in parts}
        (tmp_path / "pki").mkdir()
        for name, value in parts.items():
            (tmp_path / "pki" / f"{name}.pem").write_bytes(value)
    authority = {name: value for name, value in fields.items() if name.startswith("certificate")}
    user = {name: value for name, value in fields.items() if name.startswith("client")}
    config = await kubeconfig.load(write(tmp_path / "k", whole(cluster=authority, user=user)))
    assert config.ssl is not None
    assert await peer_name(config.ssl) == "someone"


async def test_insecure_and_server_name(tmp_path: Path) -> None:
    """``insecure-skip-tls-verify`` trusts any server, ``tls-server-name`` is the name to verify."""
    cluster = {"insecure-skip-tls-verify": True, "tls-server-name": "inside.example"}
    config = await kubeconfig.load(write(tmp_path / "k", whole(cluster=cluster)))
    assert config.ssl is not None
    assert (config.ssl.verify_mode, config.ssl.check_hostname) == (ssl.CERT_NONE, False)
    assert config.tls_server_name == "inside.example"
    config = await kubeconfig.load(write(tmp_path / "k", whole()))
    assert config.ssl is not None
    assert (config.ssl.verify_mode, config.tls_server_name) == (ssl.CERT_REQUIRED, None)


def test_cluster_config_is_printed_without_secrets() -> None:
    """Logs may show a configuration; its credentials and TLS material stay out of them."""
    tls = TlsMaterial(source="s", key=b"secret")
    config = ConnectionConfig(
        "http://a", tls=tls, credentials=StaticCredentials({"Authorization": "secret"}), source="src"
    )
    assert repr(config) == "<ConnectionConfig http://a from src>"
    assert "secret" not in repr(tls)
