"""Finds the proxy that the environment sets for a server, as Go's ``golang.org/x/net/http/httpproxy`` does.

Python's ``urllib`` reads the same variables differently: it does not support networks in $NO_PROXY, where
users list cluster addresses (``10.0.0.0/8``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from controller_runtime.errors import ConfigError

PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
"""Default port of each kind of proxy, by the scheme of its URL, as in Go's net/http."""
SOCKS = frozenset({"socks5", "socks5h"})
"""Both leave the names of servers to the proxy."""


def proxy_for(server: str, *, environment: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for a server; None: connect directly, as always to loopback.

    Args:
        server: an http or https URL.
        environment: $HTTPS_PROXY or $HTTP_PROXY, by the server's scheme, and $NO_PROXY; also in lower case.

    Raises:
        ConfigError: the proxy is not a URL of a known scheme.
    """
    parts = urlsplit(server)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = f"{parts.scheme.upper()}_PROXY"
    proxy = _variable(name, environment)
    if not proxy or _bypasses_proxy(host, port, _variable("NO_PROXY", environment)):
        return None
    url = proxy if "://" in proxy else f"http://{proxy}"
    if problem := url_problem(url):
        raise ConfigError(f"${name}: {problem}")
    return url


def url_problem(url: str) -> str:
    """Return why a URL cannot be a proxy's; empty: it can."""
    if split_url(url).scheme in PORTS:
        return ""
    return f"{without_password(url)!r} is not an http, https or socks5 URL"


def is_http(url: str) -> bool:
    """Report whether a proxy speaks HTTP."""
    return split_url(url).scheme not in SOCKS


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL; all empty if it is invalid."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def without_password(url: str) -> str:
    """Return a proxy's URL without user and password, for messages."""
    scheme, separator, rest = url.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]


def _variable(name: str, environment: Mapping[str, str]) -> str:
    return environment.get(name) or environment.get(name.lower()) or ""


def _bypasses_proxy(host: str, port: int, exceptions: str) -> bool:
    address = ip_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(
        _excepts(entry.strip().lower(), host, port, address)
        for entry in exceptions.split(",")
        if entry.strip()
    )


def _excepts(
    entry: str, host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
) -> bool:
    """Report whether one entry matches a host: ``*``, a network, or an address or domain with optional port.

    ``example.com`` matches the name itself and its subdomains. ``.example.com`` and ``*.example.com`` match
    only the subdomains.
    """
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, wanted_port = _split(entry)
    if wanted_port and wanted_port != str(port):
        return False
    named = ip_address(name)
    if named is not None:
        return named == address
    if name.startswith("*."):
        name = name[1:]
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _split(entry: str) -> tuple[str, str]:
    """Return host and port; the port is empty if there is none."""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        return host, rest.removeprefix(":")
    host, colon, port = entry.rpartition(":")
    return (host, port) if colon and ":" not in host else (entry, "")


def ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host is; None: it is a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
