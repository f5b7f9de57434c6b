"""Expiry times of credentials and certificates, in kubeconfigs and of servers."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.tls.key_pairs import make_ca, self_signed, sign
from controller_runtime.tls.reloader import server_context
from tests.unit.virtual_node.commands.healthy_clusters import healthy
from virtual_node.examine import expiries
from virtual_node.examine.clusters import EXPIRIES
from virtual_node.examine.codes import Severity
from virtual_node.examine.expiry import LEGACY_TOKEN
from virtual_node.examine.rules.clusters import credentials

END = datetime(2030, 1, 1, tzinfo=UTC)


def jwt(claims: Any) -> str:
    """Return a token with these claims and no valid signature."""
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "signature"])


def kubeconfig(directory: Path, **user: str) -> str:
    """Return a kubeconfig with these fields of the user."""
    whole = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    file = directory / "kubeconfig"
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return str(file)


def test_a_client_certificate_inside_a_kubeconfig(tmp_path):
    """It is reported as not renewed."""
    pair = sign(make_ca("ca"), "me", usage="client", validity=timedelta(days=3))
    inline = base64.b64encode(pair.certificate).decode()
    path = kubeconfig(tmp_path, **{"client-certificate-data": inline})
    (found,) = expiries.of_kubeconfig("paris", path, context="", in_cluster=False)
    assert (found.cluster, found.kind, found.renewed) == ("paris", "ClientCertificate", False)
    assert timedelta(days=2) < found.ends - datetime.now(UTC) <= timedelta(days=3)
    assert found.name == f"{path}, context c"


def test_a_client_certificate_and_a_token_in_files(tmp_path):
    """They may be renewed, so their whole lifetime is reported."""
    pair = sign(make_ca("ca"), "me", usage="client")
    pair.write(tmp_path / "me.crt", tmp_path / "me.key")
    issued = END - timedelta(hours=1)
    token = jwt({"exp": END.timestamp(), "iat": issued.timestamp()})
    (tmp_path / "token").write_text(token + "\n", encoding="utf-8")
    path = kubeconfig(tmp_path, **{"client-certificate": "me.crt", "tokenFile": "token"})
    found = {
        one.kind: one
        for one in expiries.of_kubeconfig("paris", path, context="", in_cluster=False)
    }  # fmt: skip
    assert found["ClientCertificate"].renewed
    assert (found["Token"].starts, found["Token"].ends, found["Token"].renewed) == (issued, END, True)


def test_a_token_inside_a_kubeconfig(tmp_path):
    """It is reported as not renewed."""
    path = kubeconfig(tmp_path, token=jwt({"exp": END.timestamp()}))
    (found,) = expiries.of_kubeconfig("paris", path, context="", in_cluster=False)
    assert (found.kind, found.ends, found.renewed) == ("Token", END, False)


def test_a_legacy_token_is_information(tmp_path):
    """A token without expiry, as from earlier releases, is no warning."""
    path = kubeconfig(tmp_path, token=jwt({"sub": "system:serviceaccount:virtual-node:virtual-node"}))
    found = expiries.of_kubeconfig("paris", path, context="", in_cluster=False)
    assert [one.kind for one in found] == [LEGACY_TOKEN]
    facts = healthy()
    facts.upper.put(EXPIRIES, found)
    (finding,) = credentials(facts)
    assert (finding.severity, finding.cause) == (Severity.INFO, "the token never expires")
    assert "lower-cluster register" in finding.next_step


@pytest.mark.parametrize(
    "token", ["", "opaque", "a.b.c", jwt({}), jwt([1]), jwt({"exp": "soon"}), jwt({"exp": 1e30}), "ö.ö.ö"]
)
def test_tokens_without_a_known_expiry(token):
    """Opaque tokens, such as those of bootstrap or legacy Secrets, are no finding."""
    assert expiries.token_expiry("paris", token, where="here") is None


def test_missing_files_are_no_finding(tmp_path):
    """Authentication reports them in detail; the report does not fail."""
    path = kubeconfig(tmp_path, **{"client-certificate": "nowhere.crt", "tokenFile": "nowhere"})
    assert expiries.of_kubeconfig("paris", path, context="", in_cluster=False) == []


async def test_serving_certificates_are_read_without_verification():
    """Those of an apiserver and of a virtual node's kubelet API, self-signed or not."""
    pair = self_signed("server", hosts=["127.0.0.1"], validity=timedelta(days=3))

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context(pair))
    port = server.sockets[0].getsockname()[1]
    node = {
        "metadata": {"name": "vn"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }
    config = ConnectionConfig(f"https://127.0.0.1:{port}", ssl_context=ssl.create_default_context())
    async with server:
        of_server = await expiries.of_apiserver("paris", config)
        of_kubelet = await expiries.of_kubelet(node)
    for found in (of_server, of_kubelet):
        assert found is not None
        assert timedelta(days=2) < found.ends - datetime.now(UTC) <= timedelta(days=3)
    assert of_kubelet is not None
    assert of_kubelet.name == "kubelet API of vn"
    assert await expiries.of_kubelet(node) is None, "nobody listens any more"
    assert await expiries.of_kubelet({"metadata": {"name": "vn"}}) is None
