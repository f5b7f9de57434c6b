"""Classifies error texts of failed connections.

The texts are Go's (net, crypto/tls, crypto/x509) and aiohttp's.
"""

from __future__ import annotations

import enum
import re

from virtual_node.config import program

_SERVER = re.compile(r"https?://\S+: ")


class Failure(enum.Enum):
    """Why a request failed; "it" is the server."""

    UNTRUSTED = "its certificate is not trusted"
    TLS = "the TLS handshake fails"
    REFUSED = "nothing listens there"
    SILENT = "there is no way there, or no answer in time"
    NO_NAME = "its name cannot be resolved"
    UNAUTHENTICATED = "it does not accept the credentials (401)"
    FORBIDDEN = "it forbids it (403)"
    NO_AGENT = "no agent of its tunnel is connected"
    PROXY = "its proxy cannot be reached, or refuses"
    NO_ENDPOINTS = "its Service has no endpoints"
    OTHER = ""


_TEXTS: tuple[tuple[Failure, tuple[str, ...]], ...] = (
    # Konnectivity's proxy server, and ``ProxyError``: the rest of the text is about the proxy, not about the server.
    (Failure.NO_AGENT, ("no tunnels available", "no agent available")),
    (Failure.PROXY, ("the proxy http://", "the proxy https://", "the proxy socks5")),
    # "remote error" means that the peer rejects our certificate, so TLS is tested before x509.
    (Failure.TLS, ("remote error: tls", "tls: handshake", "first record does not look like a tls handshake")),
    (Failure.UNTRUSTED, ("x509", "certificate verify failed", "certificate has expired")),
    (Failure.NO_ENDPOINTS, ("no endpoints available",)),
    (Failure.REFUSED, ("connection refused", "connect call failed", "connection reset")),
    (Failure.NO_NAME, ("no such host", "name or service not known", "server misbehaving")),
    (
        Failure.SILENT,
        ("i/o timeout", "deadline exceeded", "timed out", "no route to host", "network is unreachable",
         "no answer in time", "timeout", "eof"),
    ),
)  # fmt: skip


def failure(text: str, code: int = 0) -> Failure:
    """Return the kind of a failure.

    Args:
        text: the error.
        code: HTTP status of the response; 0: there was none, or a proxy sent it.
    """
    lowered = text.lower()
    for kind, parts in _TEXTS:
        if any(part in lowered for part in parts):
            return kind
    return {401: Failure.UNAUTHENTICATED, 403: Failure.FORBIDDEN}.get(code, Failure.OTHER)


def plain(text: str) -> str:
    """Return a readable text for an error that means that no server answered; return other errors unchanged."""
    kind = failure(text)
    if kind not in {Failure.REFUSED, Failure.SILENT, Failure.NO_NAME}:
        return text
    server = _SERVER.match(text)
    return f"{server[0]}{kind.value}" if server else kind.value


def proxy_step(text: str) -> str:
    """Return what to do about an error of the proxy in front of a server; empty: it is no such error."""
    kind = failure(text)
    if kind is Failure.NO_AGENT:
        return (
            "no agent of its tunnel is connected: does the agent run in the lower cluster, and reach the proxy server? "
            "'kubectl get pods --all-namespaces --selector app.kubernetes.io/component=tunnel' in both clusters"
        )
    if kind is not Failure.PROXY:
        return ""
    if "expired" in text.lower():
        again = f"{program.name('lower-cluster')} join"
        return f"renew the certificate of the proxy, or that of the kubeconfig; for a tunnel, '{again}' makes new ones"
    return (
        "is the proxy of proxy-url running, does it accept this kubeconfig, and does it reach the API server?"
    )
