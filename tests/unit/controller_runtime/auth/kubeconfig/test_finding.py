"""Where a kubeconfig is searched, and how several are merged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from controller_runtime.auth import kubeconfig
from controller_runtime.errors import ConfigError
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.auth.kubeconfig.conftest import CA


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


async def test_a_user_without_a_home_uses_the_pods_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in client-go: a container's arbitrary user may have no $HOME and no entry in /etc/passwd."""
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("t0k\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 1000770000)
    assert (await kubeconfig.load()).source == "in-cluster"
    with pytest.raises(ConfigError, match=r"kubeconfig ~/a: the home directory is not known; set \$HOME"):
        await kubeconfig.load("~/a")


async def test_ipv6_service_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPv6 address gets its brackets, and the port its default."""
    (tmp_path / "account").mkdir()
    (tmp_path / "account/token").write_text("t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    config = await kubeconfig.load()
    assert (config.server, config.host, config.port) == ("https://[fd00::1]:443", "fd00::1", 443)


async def test_pod_without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that the pod mounts no token."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(ConfigError, match=r"in-cluster: .*/account/token does not exist; does the pod mount"):
        await kubeconfig.load()


async def test_lower_cluster_has_no_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Without any kubeconfig, or with only a forbidden pod's account, the error is one line."""
    with pytest.raises(ConfigError, match=r"^no kubeconfig: give one by flag"):
        await kubeconfig.load()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(ConfigError, match=r"^no kubeconfig: give one by flag"):
        await kubeconfig.load(in_cluster=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"^\$KUBECONFIG: .*missing: no such file$"):
        await kubeconfig.load()


async def test_server_override(tmp_path: Path) -> None:
    """``--server`` replaces the URL and keeps the rest; alone it suffices, as for kubectl."""
    path = write(tmp_path / "k", whole(user={"token": "t"}))
    config = await kubeconfig.load(path, server="https://other:9")
    assert (config.host, await config.headers()) == ("other", {"Authorization": "Bearer t"})
    config = await kubeconfig.load(server="http://127.0.0.1:8080")
    assert (config.server, config.ssl, await config.headers()) == ("http://127.0.0.1:8080", None, {})


async def test_kubeconfig_list_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first definition of a name wins, missing files are skipped, relative paths belong to their own file."""
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


async def test_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``proxy-url`` comes before $HTTPS_PROXY, which does not apply to $NO_PROXY and loopback addresses."""
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    path = write(tmp_path / "k", whole(cluster={"proxy-url": "http://own:1"}))
    assert (await kubeconfig.load(path)).proxy_url == "http://own:1"
    path = write(tmp_path / "k", whole())
    assert (await kubeconfig.load(path)).proxy_url == "http://proxy.example:3128"
    assert (await kubeconfig.load(path, server="https://127.0.0.1:1")).proxy_url is None
    assert (await kubeconfig.load(path, server="http://api.example")).proxy_url is None
    monkeypatch.setenv("NO_PROXY", ".example")
    assert (await kubeconfig.load(path)).proxy_url is None


@pytest.mark.parametrize(
    ("flags", "user", "uid", "groups"),
    [
        ({}, "jane", "7", ["admins"]),
        ({"as": "alice"}, "alice", "7", ["admins"]),
        ({"as": "alice", "as-groups": ["a", "b"]}, "alice", "7", ["a", "b"]),
        ({"as-groups": ["a"]}, "jane", "7", ["a"]),
        ({"as": "alice", "as-uid": "8"}, "alice", "8", ["admins"]),
    ],
)
async def test_impersonation_override(tmp_path: Path, flags, user, uid, groups) -> None:
    """Each flag replaces its field of the kubeconfig only. Seen in the headers of kubectl."""
    body = whole(user={"token": "t", "as": "jane", "as-uid": "7", "as-groups": ["admins"]})
    config = await kubeconfig.load(write(tmp_path / "k", body), impersonate=flags)
    headers = await config.headers()
    assert (headers["Impersonate-User"], headers["Impersonate-Uid"]) == (user, uid)
    assert [value for name, value in headers.items() if name == "Impersonate-Group"] == groups


async def test_impersonation_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "account").mkdir()
    (tmp_path / "account/token").write_text("p")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    config = await kubeconfig.load(impersonate={"as": "alice", "as-groups": ["a"]})
    assert list((await config.headers()).items()) == [
        ("Authorization", "Bearer p"), ("Impersonate-User", "alice"), ("Impersonate-Group", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
async def test_reads_files_of_windows(tmp_path: Path, encoding: str) -> None:
    """PowerShell's ``kubectl config view --raw > FILE`` writes UTF-16 with a byte order mark, which kubectl reads."""
    text = yaml.safe_dump(whole(cluster={"server": "https://a:1"}, namespace="shop")).replace("\n", "\r\n")
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path = tmp_path / "config"
    path.write_bytes((mark + text).encode(encoding))
    config = await kubeconfig.load(str(path))
    assert (config.server, config.namespace) == ("https://a:1", "shop")
