"""$HTTPS_PROXY and $NO_PROXY have the same meaning as for kubectl."""

from __future__ import annotations

import pytest

from controller_runtime.auth.proxies import proxy_for
from controller_runtime.errors import ConfigError

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        ("https://api.example", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.example", {"https_proxy": "proxy.example:3128"}, PROXY),
        ("https://api.example", {"HTTPS_PROXY": PROXY, "https_proxy": "http://other:1"}, PROXY),
        ("https://api.example", {"HTTP_PROXY": PROXY}, None),
        ("http://api.example", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://api.example", {}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://127.8.9.1:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, None),
    ],
)
def test_which_variable_counts(server: str, environment: dict[str, str], proxy: str | None) -> None:
    """That of the server's scheme, capitals first; loopback addresses use no proxy."""
    assert proxy_for(server, environment=environment) == proxy


@pytest.mark.parametrize(
    ("server", "exceptions", "direct"),
    [
        ("https://10.96.0.1", "10.0.0.0/8", True),
        ("https://10.96.0.1", "example.com, 10.96.0.0/12 ,x", True),
        ("https://11.96.0.1", "10.0.0.0/8", False),
        ("https://[fd00::1]", "fd00::/8", True),
        ("https://api.example", "10.0.0.0/8", False),
        ("https://10.96.0.1", "nonsense/8", False),
        ("https://10.96.0.1", "10.96.0.1", True),
        ("https://10.96.0.10", "10.96.0.1", False),
        ("https://110.96.0.1", "10.96.0.1", False),
        ("https://[fd00::1]", "[fd00::1]:443", True),
        ("https://[fd00::1]", "fd00:0::1", True),
        ("https://api.example.com", "example.com", True),
        ("https://example.com", "example.com", True),
        ("https://API.Example.com.", "EXAMPLE.com", True),
        ("https://myexample.com", "example.com", False),
        ("https://api.example.com", ".example.com", True),
        ("https://example.com", ".example.com", False),
        ("https://api.example.com", "*.example.com", True),
        ("https://example.com", "*.example.com", False),
        ("https://api.example.com", "*", True),
        ("https://api.example.com:6443", "example.com:6443", True),
        ("https://api.example.com", "example.com:443", True),
        ("https://api.example.com", "example.com:6443", False),
        ("https://kubernetes.default.svc", ".svc,.cluster.local", True),
        ("https://api.example.com", ",", False),
        ("https://api.example.com", "", False),
    ],
)
def test_exceptions(server: str, exceptions: str, direct: bool) -> None:  # noqa: FBT001 - a table's column
    """$NO_PROXY has networks, addresses, domains, ports and ``*``."""
    environment = {"HTTPS_PROXY": PROXY, "NO_PROXY": exceptions}
    assert proxy_for(server, environment=environment) == (None if direct else PROXY)


@pytest.mark.parametrize("proxy", ["http://p:1", "https://p", "socks5://p:1", "socks5h://me:secret@p"])
def test_kinds_of_proxies(proxy: str) -> None:
    """Those of Go's net/http."""
    assert proxy_for("https://api.example", environment={"HTTPS_PROXY": proxy}) == proxy


def test_an_unknown_kind_is_refused_by_name() -> None:
    """It is an error, not ignored."""
    with pytest.raises(
        ConfigError, match=r"\$HTTPS_PROXY: .socks4://p:1. is not an http, https or socks5 URL"
    ):
        proxy_for("https://api.example", environment={"HTTPS_PROXY": "socks4://me:secret@p:1"})
