"""Translation of a stream request to a node into the same request to an API server.

A node's parameters (``input=1&output=1``) and an API server's (``stdin=true&stdout=true``) differ for
historical reasons, but have the same meaning. Sources: kubelet ``pkg/kubelet/server`` and
``staging/src/k8s.io/kubelet/pkg/cri/streaming``, apiserver ``pkg/registry/core/pod/strategy.go``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

from multidict import MultiDict, MultiMapping

from virtual_node.kubelet.auth.websocket_token import BEARER_PROTOCOL, websocket_protocols
from virtual_node.kubelet.base.errors import Refusal, quoted
from virtual_node.kubelet.streams.http_head import Headers

Query = list[tuple[str, str]]

TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"

_UPGRADES = frozenset({"spdy/3.1", "websocket"})
_STREAMS = (("input", "stdin"), ("output", "stdout"), ("error", "stderr"))
_KEPT_HEADERS = frozenset({"upgrade", "user-agent", "traceparent", "tracestate"})
_KEPT_PREFIXES = ("sec-websocket-", "x-stream-", "x-accept-")


def is_upgrade(values: Sequence[str]) -> bool:
    """Report whether a request's ``Upgrade`` headers name SPDY/3.1 or WebSocket, the protocols that carry streams.

    Other protocols are not forwarded. If, for example, a proxy in front of the lower API server accepted h2c,
    the client could send any request on the connection.
    """
    return len(values) == 1 and values[0].strip().lower() in _UPGRADES


def parse_query(raw: str) -> MultiMapping[str]:
    """Return the parameters of a query; bytes that are not UTF-8 are kept, because a command may contain them."""
    return MultiDict(parse_qsl(raw, keep_blank_values=True, errors="surrogateescape"))


def exec_query(query: MultiMapping[str], *, container: str) -> Query:
    """Return the parameters of an exec for an API server, with the command's words in order.

    Raises:
        Refusal: 400 if no stream is requested.
    """
    commands = [("command", word) for word in query.getall("command", [])]
    return [*attach_query(query, container=container), *commands]


def attach_query(query: MultiMapping[str], *, container: str) -> Query:
    """Return the parameters of an attach for an API server.

    A terminal (``tty``) has no separate stderr, so a request for both ignores stderr, as in the kubelet.

    Raises:
        Refusal: 400 if no stream is requested.
    """
    tty = _is_set(query, "tty")
    streams = [
        (lower_name, "true")
        for upper_name, lower_name in _STREAMS
        if _is_set(query, upper_name) and not (tty and lower_name == "stderr")
    ]
    if not streams:
        raise Refusal(400, "you must specify at least 1 of stdin, stdout, stderr")
    return [("container", container), *streams, *([("tty", "true")] if tty else [])]


def port_forward_query(query: MultiMapping[str], headers: Mapping[str, str]) -> Query:
    """Return the parameters of a port-forward for an API server.

    With SPDY the ports are named inside the stream. Plain WebSocket requires at least one port as a
    parameter.

    Raises:
        Refusal: 400 if a WebSocket has no port or an invalid one.
    """
    if headers.get("Upgrade", "").lower() != "websocket":
        return []
    if TUNNEL_PROTOCOL in websocket_protocols(headers.get("Sec-WebSocket-Protocol", "")):
        return []
    values = query.getall("port", []) or query.getall("ports", [])
    if not values:
        raise Refusal(400, 'query parameter "port" is required')
    return [("ports", str(_port(part))) for value in values for part in value.split(",")]


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) < 65536):
        raise Refusal(400, f"unable to parse {quoted(text)} as a port: it must be between 1 and 65535")
    return int(text)


def _is_set(query: MultiMapping[str], name: str) -> bool:
    return query.get(name, "") in {"1", "true"}


def target_path(path: str, query: Query) -> str:
    """Return the request target of an escaped path and a query."""
    return f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path


def forwarded_headers(method: str, headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers to forward to the lower API server, which are only those of the stream protocol.

    This is an allow list, because with a deny list one forgotten ``Impersonate-User`` would let an upper user
    act as any lower user. A token in the WebSocket protocol list is removed, too.
    """
    kept: list[tuple[str, str]] = [("Connection", "Upgrade")]
    if method == "POST":
        kept.append(("Content-Length", "0"))
    for name, value in headers:
        lower = name.lower()
        if lower == "sec-websocket-protocol":
            protocols = [p for p in websocket_protocols(value) if not p.startswith(BEARER_PROTOCOL)]
            if protocols:
                kept.append((name, ", ".join(protocols)))
        elif lower in _KEPT_HEADERS or lower.startswith(_KEPT_PREFIXES):
            kept.append((name, value))
    return tuple(kept)


def answered_headers(headers: Headers) -> Headers:
    """Return the headers of the lower API server's 101 to send to the client."""
    kept = [(n, v) for n, v in headers if n.lower() == "upgrade" or n.lower().startswith(_KEPT_PREFIXES)]
    return (("Connection", "Upgrade"), *kept)
