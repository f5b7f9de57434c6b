"""Errors of a kubeconfig are one line with file and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import sign
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.auth.kubeconfig.conftest import CA, PAIR, b64


def broken(**changes: Any) -> dict[str, Any]:
    """Return a kubeconfig with some top-level fields replaced."""
    return {**whole(), **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "cannot be read: line 2, column 1"),
        ("- a", "must be a mapping"),
        ("\x00", "cannot be read:"),
        (broken(contexts="x"), "contexts: must be a list of mappings"),
        (broken(contexts=["x"]), "contexts: must be a list of mappings"),
        (broken(contexts=[]), r"contexts: there is no context 'one' \(there are: none\)"),
        (broken(**{"current-context": "two"}), r"contexts: there is no context 'two' \(there are: one\)"),
        (broken(**{"current-context": ""}), "current-context: none is set"),
        (broken(**{"current-context": ["one"]}), "current-context: must be a string"),
        (broken(clusters=None), r"clusters: there is no cluster 'c' \(there are: none\)"),
        (broken(users=[]), r"users: there is no user 'u' \(there are: none\)"),
        (broken(users=[{"name": "u", "user": "x"}]), r"users\[name=u\]\.user: must be a mapping"),
        (
            broken(contexts=[{"name": "one", "context": {}}]),
            r"contexts\[name=one\]\.context\.cluster: is missing",
        ),
        (whole(cluster={"server": ""}), r"clusters\[name=c\]\.cluster\.server: is missing"),
        (whole(cluster={"server": "10.0.0.1:6443"}), r"\.server: '10.0.0.1:6443' is not an http\(s\) URL"),
        (
            whole(cluster={"server": "https://me:word@a"}),
            r"\.server: has a name in front of the host; it belongs to username and password of the user$",
        ),
        (whole(cluster={"server": "https://a:port"}), r"\.server: 'https://a:port' is not a URL"),
        (
            whole(cluster={"proxy-url": "socks4://a:1"}),
            r"\.proxy-url: 'socks4://a:1' is not an http, https or socks5 URL",
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
            r"user\.client-key: is missing; set both the client certificate and its key",
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
        (whole(user={"token": "a b"}), r"user\.token: is not a token"),
        (whole(user={"token": ["a"]}), r"user\.token: must be a string"),
        (
            whole(
                cluster={
                    "insecure-skip-tls-verify": True,
                    "certificate-authority-data": b64(CA.certificate),
                }
            ),
            r"cluster\.insecure-skip-tls-verify: certificate-authority is set, too; remove one of them",
        ),
        (whole(user={"as-groups": ["admins"]}), r"user\.as: is missing; as-uid, as-groups"),
        (whole(user={"as-user-extra": {"a": ["b"]}}), r"user\.as: is missing; as-uid, as-groups"),
        (whole(user={"as": "me", "as-groups": "admins"}), r"user\.as-groups: must be a list of strings"),
        (
            whole(user={"as": "me", "as-user-extra": {"a": "b"}}),
            r"user\.as-user-extra\.a: must be a list of strings",
        ),
        (whole(user={"as": "me\r\nX: y"}), r"user\.as: .* has characters that an HTTP header must not have"),
        (whole(cluster={"proxy-url": "ftp://me:secret@p:1"}), r"proxy-url: 'ftp://p:1' is not an http"),
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
            r"user\.exec\.interactiveMode: Always needs a terminal, and standard input is not a terminal",
        ),
        (
            whole(
                user={"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1", "args": "a"}}
            ),
            r"user\.exec\.args: must be a list of strings",
        ),
        (
            whole(cluster={"server": "https://x", "proxy-url": "http://12[[7.0.0.1:1"}),
            r"cluster\.proxy-url: 'http://12\[\[7.0.0.1:1' is not an http, https or socks5 URL",
        ),
    ],
)
async def test_errors_name_file_and_field(tmp_path: Path, content: Any, message: str) -> None:
    """The message is one line with the file, the field and the problem."""
    path = write(tmp_path / "k", content)
    with pytest.raises(ConfigError, match=message) as caught:
        await kubeconfig.load(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_unreadable_file(tmp_path: Path) -> None:
    """A directory in place of a file gives the system's error."""
    with pytest.raises(ConfigError, match="Is a directory"):
        await kubeconfig.load(str(tmp_path))


async def test_unknown_context(tmp_path: Path) -> None:
    """The message lists the existing ones."""
    with pytest.raises(ConfigError, match=r"there is no context 'prod' \(there are: one\)"):
        await kubeconfig.load(write(tmp_path / "k", whole()), context="prod")


@pytest.mark.parametrize("server", ["", "ftp://x", "https://", "https://a?b", "//x"])
def test_cluster_config_refuses_other_urls(server: str) -> None:
    """A server is an http or https URL with a host and no query."""
    with pytest.raises(ConfigError, match=r"src: .* is not an http\(s\) URL"):
        ConnectionConfig(server, source="src")


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".com", ".", "a b", "a\\b", "a\x00b", "\u200b", ".a"])
def test_names_that_resolver_or_tls_refuse_are_errors_of_the_configuration(host: str) -> None:
    """As errors of requests, they would end a process with many clusters, because they are no network errors."""
    with pytest.raises(ConfigError, match="src: "):
        ConnectionConfig(f"https://{host}", source="src")
    with pytest.raises(ConfigError, match="src: proxy-url"):
        ConnectionConfig("https://a", proxy_url=f"http://{host}:1", source="src")
    with pytest.raises(ConfigError, match="src: tls-server-name"):
        ConnectionConfig("https://a", tls_server_name=host, source="src")
