"""Kubeconfigs are read as by kubernetes-asyncio, which is needed for some users only."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller_runtime.auth import kubeconfig
from controller_runtime.errors import ConfigError
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.auth.kubeconfig.conftest import CA, PAIR, b64


async def test_openid_connect_user(tmp_path: Path) -> None:
    """An ``auth-provider`` user signs in by kubernetes-asyncio."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 4_000_000_000}).encode()).decode().rstrip("=")
    token = f"e30.{claims}.x"
    provider = {"name": "oidc", "config": {"id-token": token}}
    config = await kubeconfig.load(write(tmp_path / "k", whole(user={"auth-provider": provider})))
    assert await config.headers() == {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ({"name": "oidc", "config": {"id-token": "x"}}, "JWT tokens should contain"),
        ({"name": "azure", "config": {}}, "this provider is not supported"),
    ],
)
async def test_bad_auth_provider(tmp_path: Path, provider: dict[str, Any], message: str) -> None:
    """An error of kubernetes-asyncio is one line that names the field."""
    path = write(tmp_path / "k", whole(user={"auth-provider": provider}))
    with pytest.raises(ConfigError, match=rf"users\[name=u\]\.user\.auth-provider: .*{message}"):
        await kubeconfig.load(path)


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {"token": "t"}),
        ({}, {"tokenFile": "token"}),
        ({"tls-server-name": "x", "proxy-url": "http://p:1"}, {"username": "a", "password": "b"}),
        (
            {"certificate-authority-data": b64(CA.certificate), "insecure-skip-tls-verify": False},
            {"client-certificate-data": b64(PAIR.certificate), "client-key-data": b64(PAIR.key)},
        ),
    ],
)
async def test_reads_what_kubernetes_asyncio_reads(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    """Server, authentication, proxy and names agree with kubernetes-asyncio's reading of the same file."""
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - half a second, for this test alone
    from kubernetes_asyncio.config import load_kube_config  # noqa: PLC0415

    (tmp_path / "token").write_text("from-file")
    path = write(tmp_path / "k", whole(cluster=cluster, user=user))
    ours = await kubeconfig.load(path)
    theirs = Configuration()
    await load_kube_config(path, client_configuration=theirs, persist_config=False)
    assert ours.server == theirs.host
    assert (await ours.headers()).get("Authorization") == theirs.api_key.get("BearerToken")
    assert ours.proxy_url == theirs.proxy
    assert ours.tls_server_name == theirs.tls_server_name


def test_generated_models_are_not_imported(tmp_path: Path) -> None:
    """A kubeconfig with a token is loaded without the 850 modules of kubernetes-asyncio."""
    path = write(tmp_path / "k", whole(user={"token": "t"}))
    program = (
        "import asyncio, sys\n"
        "from controller_runtime.client import client; from controller_runtime.auth import kubeconfig\n"
        f"asyncio.run(kubeconfig.load({path!r}))\n"
        "print(sum(name.startswith('kubernetes_asyncio') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
