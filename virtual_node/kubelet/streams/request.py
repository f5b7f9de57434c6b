"""Translates a request for a stream at a node into the same request at an apiserver. Pure.

The node's spelling (``input=1&output=1``) and the apiserver's (``stdin=true&stdout=true``) differ for
historical reasons; what they mean does not. Sources: kubelet ``pkg/kubelet/server`` and
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
    """Tell whether a request's ``Upgrade`` headers ask for one of the two protocols that carry streams.

    No other is passed on: a proxy before the lower apiserver that agrees to h2c, say, would leave the client with a
    connection on which it may ask for anything.
    """
    return len(values) == 1 and values[0].strip().lower() in _UPGRADES


def parse_query(raw: str) -> MultiMapping[str]:
    """Read a query as it was sent; bytes that are no UTF-8 are kept, because they may be part of a command."""
    return MultiDict(parse_qsl(raw, keep_blank_values=True, errors="surrogateescape"))


def exec_query(query: MultiMapping[str], *, container: str) -> Query:
    """Translate the parameters of an exec; the command keeps its order.

    Raises:
        Refusal: 400 when no stream is asked for.
    """
    commands = [("command", word) for word in query.getall("command", [])]
    return [*attach_query(query, container=container), *commands]


def attach_query(query: MultiMapping[str], *, container: str) -> Query:
    """Translate the parameters of an attach.

    With a terminal there is no stderr of its own: the kubelet ignores the wish, and so does this.

    Raises:
        Refusal: 400 when no stream is asked for.
    """
    tty = _is_set(query, "tty")
    streams = [
        (theirs, "true")
        for ours, theirs in _STREAMS
        if _is_set(query, ours) and not (tty and theirs == "stderr")
    ]
    if not streams:
        raise Refusal(400, "you must specify at least 1 of stdin, stdout, stderr")
    return [("container", container), *streams, *([("tty", "true")] if tty else [])]


def port_forward_query(query: MultiMapping[str], headers: Mapping[str, str]) -> Query:
    """Translate the parameters of a port-forward.

    SPDY names the ports inside the stream. Plain WebSocket names them here and must name at least one.

    Raises:
        Refusal: 400 when a WebSocket names no port, or something that is none.
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
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:6]) < 65536:
        raise Refusal(400, f"unable to parse {quoted(text)} as a port: it must be between 1 and 65535")
    return int(text)


def _is_set(query: MultiMapping[str], name: str) -> bool:
    return query.get(name, "") in {"1", "true"}


def target_path(path: str, query: Query) -> str:
    """Join an escaped path and a query into a request target."""
    return f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path


def forwarded_headers(method: str, headers: Iterable[tuple[str, str]]) -> Headers:
    """Choose the headers that go on to the lower apiserver: those of the protocol, and no others.

    A list of what may pass and not of what may not: one forgotten ``Impersonate-User`` would let a user
    of the upper cluster be anybody in the lower one. Credentials in a WebSocket's protocol list are
    taken out as well.
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
    """Choose the headers of a 101 that go back to the client."""
    kept = [(n, v) for n, v in headers if n.lower() == "upgrade" or n.lower().startswith(_KEPT_PREFIXES)]
    return (("Connection", "Upgrade"), *kept)
