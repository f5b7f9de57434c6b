"""Kubeconfigs, a pod's own account, and the environment become a server, a TLS context and headers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from controller_runtime import kubeconfig, resources
from controller_runtime.client import Client
from controller_runtime.client_tls import TlsMaterial
from controller_runtime.cluster_config import ClusterConfig
from controller_runtime.credentials import StaticCredentials
from controller_runtime.errors import ConfigError
from controller_runtime.key_pairs import as_file, make_ca, sign
from tests.unit.controller_runtime.loopback import answers, reply, serve

CA = make_ca("test-ca")
PAIR = sign(CA, "someone", usage="client")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kubeconfig, cluster or proxy of the machine that runs the tests."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("KUBERNETES_") or name == "KUBECONFIG":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kubeconfig, "_ACCOUNT", tmp_path / "account")


def whole(
    *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **context: Any
) -> dict[str, Any]:
    """A kubeconfig with one context, ``one``."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(path: Path, content: Any) -> str:
    """Write a kubeconfig, as YAML unless it is text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def b64(data: bytes) -> str:
    """As kubeconfigs carry data."""
    return base64.b64encode(data).decode()


# --- where it is looked for ---------------------------------------------------------------------------


async def test_explicit_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path given wins over $KUBECONFIG, ~/.kube/config and the pod's own account."""
    monkeypatch.setenv("KUBECONFIG", write(tmp_path / "env", whole(cluster={"server": "https://env:1"})))
    path = write(tmp_path / "given", whole(cluster={"server": "https://given:1/prefix/"}, namespace="shop"))
    config = await kubeconfig.load(path)
    assert (config.server, config.host, config.port) == ("https://given:1/prefix", "given", 1)
    assert (config.path_prefix, config.namespace, config.context_name) == ("/prefix", "shop", "one")
    assert config.source == f"kubeconfig {path}"


async def test_environment_then_home_then_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$KUBECONFIG, then ~/.kube/config, then the pod's own account."""
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("t0k\n")
    (account / "ca.crt").write_bytes(CA.certificate)
    (account / "namespace").write_text("mine\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    config = await kubeconfig.load()
    assert (config.server, config.namespace, config.source) == (
        "https://10.0.0.1:6443",
        "mine",
        "in-cluster",
    )
    assert await config.headers() == {"Authorization": "Bearer t0k"}
    assert config.ssl is not None
    assert [ca["subject"] for ca in config.ssl.get_ca_certs()] == [((("commonName", "test-ca"),),)]

    write(tmp_path / "home/.kube/config", whole(cluster={"server": "https://home:1"}))
    assert (await kubeconfig.load()).host == "home"
    monkeypatch.setenv("KUBECONFIG", write(tmp_path / "env", whole(cluster={"server": "https://env:1"})))
    assert (await kubeconfig.load()).host == "env"


async def test_ipv6_service_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPv6 address gets its brackets, and the port its default."""
    (tmp_path / "account").mkdir()
    (tmp_path / "account/token").write_text("t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    config = await kubeconfig.load()
    assert (config.server, config.host, config.port) == ("https://[fd00::1]:443", "fd00::1", 443)


async def test_pod_without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that mounts no token is told so."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(ConfigError, match=r"in-cluster: .*/account/token is not there; does the pod mount"):
        await kubeconfig.load()


async def test_lower_cluster_is_never_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit path that cannot be loaded never falls back to the pod's account or another file."""
    (tmp_path / "account").mkdir()
    (tmp_path / "account/token").write_text("t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBECONFIG", write(tmp_path / "env", whole()))
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=rf"^kubeconfig {missing}: no such file$"):
        await kubeconfig.load(str(missing))
    with pytest.raises(ConfigError, match="is empty"):
        await kubeconfig.load(write(tmp_path / "empty", ""))


async def test_nothing_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing anywhere, or only a pod's account that must not be used, is one clear line."""
    with pytest.raises(ConfigError, match=r"^no kubeconfig: give one by flag"):
        await kubeconfig.load()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(ConfigError, match=r"^no kubeconfig: give one by flag"):
        await kubeconfig.load(in_cluster=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"^\$KUBECONFIG: .*missing: no such file$"):
        await kubeconfig.load()


async def test_server_override(tmp_path: Path) -> None:
    """``--server`` replaces the URL and keeps the rest; alone it is enough, as for kubectl."""
    path = write(tmp_path / "k", whole(user={"token": "t"}))
    config = await kubeconfig.load(path, server="https://other:9")
    assert (config.host, await config.headers()) == ("other", {"Authorization": "Bearer t"})
    config = await kubeconfig.load(server="http://127.0.0.1:8080")
    assert (config.server, config.ssl, await config.headers()) == ("http://127.0.0.1:8080", None, {})


# --- merging ------------------------------------------------------------------------------------------


async def test_kubeconfig_list_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a list the first to name a thing wins, missing files are passed over, paths stay their file's own."""
    first, second = tmp_path / "a/config", tmp_path / "b/config"
    write(
        first,
        {
            "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": "https://first:1"}}],
            "contexts": None,
        },
    )
    write(second, whole(user={"tokenFile": "token"}) | {"current-context": "y"})
    content = yaml.safe_load(second.read_text())
    content["contexts"].append({"name": "x", "context": {"cluster": "c", "user": "u"}})
    write(second, content)
    write(tmp_path / "b/token", "beside")
    monkeypatch.setenv(
        "KUBECONFIG", os.pathsep.join([str(tmp_path / "nope"), str(first), "", str(first), str(second)])
    )
    config = await kubeconfig.load()
    assert (config.context_name, config.host) == ("x", "first")
    assert await config.headers() == {"Authorization": "Bearer beside"}
    assert (await kubeconfig.load(context="one")).context_name == "one"


# --- users --------------------------------------------------------------------------------------------


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
    """``as`` and what goes with it are sent with every request as kubectl sends them, beside our own credentials."""
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


async def peer_name(client: ssl.SSLContext) -> str:
    """Whom a TLS server sees that a client context introduces."""
    return await asyncio.to_thread(_handshake, client)


def _handshake(client: ssl.SSLContext) -> str:
    server_pair = sign(CA, "server", hosts=["server.example"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=CA.certificate.decode())
    with as_file(server_pair.certificate + server_pair.key) as path:
        server.load_cert_chain(path)
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


async def test_insecure_and_server_name(tmp_path: Path) -> None:
    """``insecure-skip-tls-verify`` trusts anybody, ``tls-server-name`` is the name to verify."""
    cluster = {"insecure-skip-tls-verify": True, "tls-server-name": "inside.example"}
    config = await kubeconfig.load(write(tmp_path / "k", whole(cluster=cluster)))
    assert config.ssl is not None
    assert (config.ssl.verify_mode, config.ssl.check_hostname) == (ssl.CERT_NONE, False)
    assert config.tls_server_name == "inside.example"
    config = await kubeconfig.load(write(tmp_path / "k", whole()))
    assert config.ssl is not None
    assert (config.ssl.verify_mode, config.tls_server_name) == (ssl.CERT_REQUIRED, None)


async def test_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``proxy-url`` comes before $HTTPS_PROXY, which $NO_PROXY and loopback addresses go round."""
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    path = write(tmp_path / "k", whole(cluster={"proxy-url": "http://own:1"}))
    assert (await kubeconfig.load(path)).proxy_url == "http://own:1"
    path = write(tmp_path / "k", whole())
    assert (await kubeconfig.load(path)).proxy_url == "http://proxy.example:3128"
    assert (await kubeconfig.load(path, server="https://127.0.0.1:1")).proxy_url is None
    assert (await kubeconfig.load(path, server="http://api.example")).proxy_url is None
    monkeypatch.setenv("NO_PROXY", ".example")
    assert (await kubeconfig.load(path)).proxy_url is None


# --- rotation -----------------------------------------------------------------------------------------


@pytest.mark.looptime
async def test_token_file_rotates(tmp_path: Path) -> None:
    """A token file is read again after a minute, and at once after a 401; lost, its last token stays."""
    token = tmp_path / "token"
    token.write_text("one\n")
    config = await kubeconfig.load(write(tmp_path / "k", whole(user={"tokenFile": "token", "token": "old"})))
    assert await config.headers() == {"Authorization": "Bearer one"}
    token.write_text("two")
    await asyncio.sleep(59)
    assert await config.headers() == {"Authorization": "Bearer one"}
    await asyncio.sleep(2)
    assert await config.headers() == {"Authorization": "Bearer two"}
    token.write_text("three")
    assert await config.headers(refresh=True) == {"Authorization": "Bearer three"}
    token.unlink()
    assert await config.headers(refresh=True) == {"Authorization": "Bearer three"}
    token.write_text("")
    assert await config.headers(refresh=True) == {"Authorization": "Bearer three"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b"", "is empty"), (b"a\nb", "is no token"), (b"\xff\xfe", "is not text")],
)
async def test_bad_token_file(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """Without one good token there is nothing to send, and the message names field, file and problem."""
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(
        ConfigError, match=rf"users\[name=u\]\.user\.tokenFile: token file .*/token: {problem}"
    ):
        await kubeconfig.load(write(tmp_path / "k", whole(user={"tokenFile": "token"})))


@pytest.mark.looptime
async def test_certificate_files_rotate(tmp_path: Path) -> None:
    """A renewed certificate file makes a new context within a minute; a broken one leaves the old."""
    PAIR.write(tmp_path / "crt", tmp_path / "key")
    (tmp_path / "ca").write_bytes(CA.certificate)
    user = {"client-certificate": "crt", "client-key": "key"}
    path = write(tmp_path / "k", whole(user=user, cluster={"certificate-authority": "ca"}))
    config = await kubeconfig.load(path)
    first = config.ssl
    assert first is not None
    sign(CA, "renewed", usage="client").write(tmp_path / "crt", tmp_path / "key")
    await asyncio.sleep(59)
    await config.headers()
    assert config.ssl is first
    await asyncio.sleep(2)
    await config.headers()
    second = config.ssl
    assert second is not None
    assert second is not first
    assert await peer_name(second) == "renewed"
    (tmp_path / "crt").write_bytes(b"half a certif")
    await config.headers(refresh=True)
    assert config.ssl is second
    sign(CA, "third", usage="client").write(tmp_path / "crt", tmp_path / "key")
    await config.headers(refresh=True)
    assert config.ssl is not None
    assert await peer_name(config.ssl) == "third"
    assert config.ssl is not second


@pytest.mark.looptime
async def test_file_read_while_it_was_written(tmp_path: Path) -> None:
    """A file that was half there is tried again, even if its time and size do not tell that it is whole now."""
    pair = tmp_path / "pair"
    pair.write_bytes(PAIR.certificate + PAIR.key)
    tls = TlsMaterial(source="s", authority=CA.certificate, certificate=pair)
    config = ClusterConfig("https://api", tls=tls)
    renewed = sign(CA, "renewed", usage="client")
    whole = renewed.certificate + renewed.key
    pair.write_bytes(b"x" * len(whole))
    os.utime(pair, (1, 1))
    await config.headers(refresh=True)
    pair.write_bytes(whole)
    os.utime(pair, (1, 1))
    await config.headers(refresh=True)
    assert config.ssl is not None
    assert await peer_name(config.ssl) == "renewed"


# --- errors -------------------------------------------------------------------------------------------


def broken(**changes: Any) -> dict[str, Any]:
    """A kubeconfig with some top-level fields replaced."""
    return {**whole(), **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "cannot be read: while parsing"),
        ("- a", "must be a mapping"),
        ("\x00", "cannot be read:"),
        (broken(contexts="x"), "contexts: must be a list of mappings"),
        (broken(contexts=["x"]), "contexts: must be a list of mappings"),
        (broken(contexts=[]), r"contexts: there is no context 'one' \(there are: none\)"),
        (broken(**{"current-context": "two"}), r"contexts: there is no context 'two' \(there are: one\)"),
        (broken(**{"current-context": ""}), "current-context: none is set"),
        (broken(**{"current-context": ["one"]}), "current-context: must be text"),
        (broken(clusters=None), r"clusters: there is no cluster 'c' \(there are: none\)"),
        (broken(users=[]), r"users: there is no user 'u' \(there are: none\)"),
        (broken(users=[{"name": "u", "user": "x"}]), r"users\[name=u\]\.user: must be a mapping"),
        (
            broken(contexts=[{"name": "one", "context": {}}]),
            r"contexts\[name=one\]\.context\.cluster: is missing",
        ),
        (whole(cluster={"server": ""}), r"clusters\[name=c\]\.cluster\.server: is missing"),
        (whole(cluster={"server": "10.0.0.1:6443"}), r"\.server: '10.0.0.1:6443' is not an http\(s\) URL"),
        (whole(cluster={"server": "https://a:port"}), r"\.server: 'https://a:port' is not a URL"),
        (
            whole(cluster={"proxy-url": "socks5://a:1"}),
            r"\.proxy-url: 'socks5://a:1' is not an http\(s\) URL",
        ),
        (whole(cluster={"insecure-skip-tls-verify": "yes please"}), "insecure-skip-tls-verify: must be true"),
        (whole(cluster={"certificate-authority-data": "&&&"}), "certificate-authority-data: is not base64"),
        (whole(cluster={"certificate-authority-data": b64(b"x")}), "context one: certificate-authority: "),
        (
            whole(cluster={"certificate-authority": "missing.pem"}),
            "certificate-authority .*missing.pem: No such file",
        ),
        (
            whole(user={"client-certificate-data": b64(PAIR.certificate)}),
            r"user\.client-key: is missing; a client certificate and its key come together",
        ),
        (
            whole(
                user={
                    "client-certificate-data": b64(PAIR.certificate),
                    "client-key-data": b64(sign(CA, "other").key),
                }
            ),
            "context one: client-certificate: .*MISMATCH",
        ),
        (whole(user={"token": "a b"}), r"user\.token: is no token"),
        (whole(user={"token": ["a"]}), r"user\.token: must be text"),
        (
            whole(
                cluster={
                    "insecure-skip-tls-verify": True,
                    "certificate-authority-data": b64(CA.certificate),
                }
            ),
            r"cluster\.insecure-skip-tls-verify: there is a certificate-authority, too; remove one of them",
        ),
        (whole(user={"as-groups": ["admins"]}), r"user\.as: is missing; as-uid, as-groups"),
        (whole(user={"as-user-extra": {"a": ["b"]}}), r"user\.as: is missing; as-uid, as-groups"),
        (whole(user={"as": "me", "as-groups": "admins"}), r"user\.as-groups: must be a list of texts"),
        (
            whole(user={"as": "me", "as-user-extra": {"a": "b"}}),
            r"user\.as-user-extra\.a: must be a list of texts",
        ),
        (whole(user={"as": "me\r\nX: y"}), r"user\.as: .* has characters that a header cannot carry"),
        (whole(cluster={"proxy-url": "socks5://me:secret@p:1"}), r"proxy-url: 'socks5://p:1' is not an http"),
        (whole(user={"exec": "x"}), r"user\.exec: must be a mapping"),
        (whole(user={"exec": {}}), r"user\.exec\.command: is missing"),
        (whole(user={"exec": {"command": "x"}}), r"user\.exec\.apiVersion: '' is not supported \(known: "),
        (
            whole(
                user={
                    "exec": {
                        "command": "x",
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "interactiveMode": "Always",
                    }
                }
            ),
            r"user\.exec\.interactiveMode: Always: there is nobody to talk to",
        ),
        (
            whole(
                user={"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1", "args": "a"}}
            ),
            r"user\.exec\.args: must be a list of texts",
        ),
    ],
)
async def test_errors_name_file_and_field(tmp_path: Path, content: Any, message: str) -> None:
    """Whatever is wrong, the message is one line with the file, the field and the problem."""
    path = write(tmp_path / "k", content)
    with pytest.raises(ConfigError, match=message) as caught:
        await kubeconfig.load(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_unreadable_file(tmp_path: Path) -> None:
    """A directory in place of a file is told as the system tells it."""
    with pytest.raises(ConfigError, match="Is a directory"):
        await kubeconfig.load(str(tmp_path))


async def test_unknown_context(tmp_path: Path) -> None:
    """A context asked for by name and not there: the message lists those that are."""
    with pytest.raises(ConfigError, match=r"there is no context 'prod' \(there are: one\)"):
        await kubeconfig.load(write(tmp_path / "k", whole()), context="prod")


@pytest.mark.parametrize("server", ["", "ftp://x", "https://", "https://a?b", "//x"])
def test_cluster_config_refuses_other_urls(server: str) -> None:
    """A server is an http or https URL with a host and no query."""
    with pytest.raises(ConfigError, match=r"src: .* is not an http\(s\) URL"):
        ClusterConfig(server, source="src")


def test_cluster_config_is_printed_without_secrets() -> None:
    """Logs may show a configuration; its credentials and TLS material stay out of them."""
    tls = TlsMaterial(source="s", key=b"secret")
    config = ClusterConfig(
        "http://a", tls=tls, credentials=StaticCredentials({"Authorization": "secret"}), source="src"
    )
    assert repr(config) == "<ClusterConfig http://a from src>"
    assert "secret" not in repr(tls)


# --- kubernetes-asyncio -------------------------------------------------------------------------------


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
    """What kubernetes-asyncio cannot do is one line that names the field."""
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


def test_generated_models_are_not_imported_for_nothing(tmp_path: Path) -> None:
    """A kubeconfig with a token is loaded without the 850 modules of kubernetes-asyncio."""
    path = write(tmp_path / "k", whole(user={"token": "t"}))
    program = (
        "import asyncio, sys\n"
        "from controller_runtime import client, kubeconfig\n"
        f"asyncio.run(kubeconfig.load({path!r}))\n"
        "print(sum(name.startswith('kubernetes_asyncio') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
