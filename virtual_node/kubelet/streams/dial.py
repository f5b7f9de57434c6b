"""Translates a stream request to a node into one to an API server, and sends it on a raw connection.

A node's parameters (``input=1&output=1``) and an API server's (``stdin=true&stdout=true``) differ for historical reasons,
but have the same meaning. Sources: kubelet ``pkg/kubelet/server`` and ``staging/src/k8s.io/kubelet/pkg/cri/streaming``,
apiserver ``pkg/registry/core/pod/strategy.go``.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from multidict import MultiDict, MultiMapping

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.serving.raw_connection import Connection, start_tls
from virtual_node.kubelet.auth import BEARER_PROTOCOL, websocket_protocols
from virtual_node.kubelet.base import Refusal, quoted

MAX_HEAD = 64 * 1024
"""Maximum bytes of a response head. A Kubernetes API server sends less than four thousand."""
MAX_ERROR_BODY = 64 * 1024
_BODY_TIMEOUT = 10.0
"""Seconds to read the body of an error."""
END_OF_HEAD = b"\r\n\r\n"
Headers = tuple[tuple[str, str], ...]
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[\x21-\x7e]+")
_FORBIDDEN_IN_VALUE = re.compile(r"[\x00\r\n]")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-9]\d\d)(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
Query = list[tuple[str, str]]
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
_UPGRADES = frozenset({"spdy/3.1", "websocket"})
_STREAMS = (("input", "stdin"), ("output", "stdout"), ("error", "stderr"))
_KEPT_HEADERS = frozenset({"upgrade", "user-agent", "traceparent", "tracestate"})
_KEPT_PREFIXES = ("sec-websocket-", "x-stream-", "x-accept-")


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to an upgrade request.

    Attributes:
        connection: The connection, with reading paused.
        head: The response head.
        rest: Bytes received after the head.
    """

    connection: Connection
    head: ResponseHead
    rest: bytes


class DialError(Exception):
    """The lower API server did not answer; the text is the cause in one line."""


async def dial(
    config: ConnectionConfig, request: RequestHead, *, answer_timeout: float, refresh: bool = False
) -> Answer:
    """Connect to a lower apiserver and send one upgrade request with the virtual node's credentials.

    Args:
        config: The lower cluster. If it has a proxy, the connection is a tunnel through it (``CONNECT``).
        request: The upgrade request: GET for WebSocket, POST for SPDY. The target is relative to the server's path
            prefix, and the headers are without Host and credentials.
        answer_timeout: Maximum seconds for connection, handshakes and response together.
        refresh: Whether to renew the credentials first, after a 401.

    Returns:
        The response; the caller must close its connection. Cancellation of ``dial`` closes the connection.

    Raises:
        ConfigError: There are no credentials to send.
        DialError: The connection was refused, reset, timed out, not trusted or not HTTP.
        ValueError: A header or path contains characters that would end its line.
    """
    credentials = await config.headers(refresh=refresh)
    head = RequestHead(
        request.method,
        config.path_prefix.rstrip("/") + request.target,
        (("Host", _authority(config.host, config.port)), *credentials.items(), *request.headers),
    ).encode()
    try:
        async with asyncio.timeout(answer_timeout):
            connection = await _connect(config)
            return await _ask(connection, head)
    except TimeoutError:
        raise DialError(f"no answer within {answer_timeout:g} s") from None
    except (OSError, ValueError, EOFError) as error:
        raise DialError(str(error) or type(error).__name__) from error


async def read_error_body(answer: Answer) -> bytes:
    """Read the body of a response other than 101, and close its connection.

    Returns:
        At most 64 KiB; if reading fails or takes longer than 10 s, the bytes received so far.
    """
    reader = asyncio.StreamReader()
    transport = answer.connection.transport
    try:
        if answer.rest:
            reader.feed_data(answer.rest)
        protocol = _BodyReader(reader)
        if transport.is_closing():
            reader.feed_eof()
        else:
            transport.set_protocol(protocol)
            reader.set_transport(transport)
            transport.resume_reading()
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_TIMEOUT):
                await _read_body(reader, answer.head, body)
        except (TimeoutError, OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass
        return bytes(body)
    finally:
        transport.abort()


class _BodyReader(asyncio.StreamReaderProtocol):
    """Closes at the end of input. TLS has no half-close, but the base class does not know that it runs over TLS."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def _read_body(reader: asyncio.StreamReader, head: ResponseHead, body: bytearray) -> None:
    if head.get("Transfer-Encoding").lower() == "chunked":
        while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
            if len(body) + size > MAX_ERROR_BODY:
                return
            body += await reader.readexactly(size)
            await reader.readuntil(b"\n")
        return
    length = min(int(head.get("Content-Length") or MAX_ERROR_BODY), MAX_ERROR_BODY)
    while len(body) < length and (chunk := await reader.read(length - len(body))):
        body += chunk


async def _connect(config: ConnectionConfig) -> Connection:
    if not config.proxy_url:
        connection = await _tcp(config.host, config.port)
    else:
        connection = await _through_proxy(urlsplit(config.proxy_url), config.host, config.port)
    if config.ssl is None:
        return connection
    return await _tls(connection, config.ssl, config.tls_server_name or config.host)


async def _tcp(host: str, port: int) -> Connection:
    loop = asyncio.get_running_loop()
    connecting = loop.create_task(
        loop.create_connection(_Silent, host, port, happy_eyeballs_delay=0.25), name=f"connect to {host}"
    )
    try:
        transport, _ = await asyncio.shield(connecting)
    except asyncio.CancelledError:
        # Let the task finish, then abort its connection. If the task were cancelled, a socket that asyncio
        # has just connected in an inner task could leak.
        connecting.add_done_callback(_abort)
        raise
    return Connection(transport, transport)


def _abort(connecting: asyncio.Task[tuple[asyncio.Transport, _Silent]]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].abort()


class _Silent(asyncio.Protocol):
    """Keeps reading paused, so that the next protocol gets the first bytes and the end of the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


async def _tls(connection: Connection, context: ssl.SSLContext, server_name: str) -> Connection:
    transport = await start_tls(connection.transport, HeadReader(), context, server_hostname=server_name)
    return Connection(transport, connection.raw)


async def _through_proxy(proxy: SplitResult, host: str, port: int) -> Connection:
    if proxy.scheme not in {"http", "https"} or not proxy.hostname:
        raise ValueError(f"proxy-url: {proxy.scheme}:// is not supported for exec, attach and port-forward")
    connection = await _tcp(proxy.hostname, proxy.port or (443 if proxy.scheme == "https" else 80))
    if proxy.scheme == "https":
        connection = await _tls(connection, ssl.create_default_context(), proxy.hostname)
    authority = _authority(host, port)
    headers: Headers = (("Host", authority),)
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        headers += (("Proxy-Authorization", "Basic " + base64.b64encode(login).decode()),)
    answer = await _ask(connection, RequestHead("CONNECT", authority, headers).encode())
    if answer.head.status // 100 != 2:
        connection.transport.abort()
        raise ConnectionRefusedError(f"the proxy answered {answer.head.status} {answer.head.reason}")
    return connection


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _ask(connection: Connection, head: bytes) -> Answer:
    transport = connection.transport
    reader = HeadReader()
    transport.set_protocol(reader)
    transport.write(head)
    transport.resume_reading()
    try:
        raw_head, rest = await reader.read(transport)
        return Answer(connection, ResponseHead.parse(raw_head), rest)
    except BaseException:
        transport.abort()
        raise


class HeadReader(asyncio.Protocol):
    """Collects bytes up to the end of a response head, then pauses the transport's reading."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    async def read(self, transport: asyncio.Transport) -> tuple[bytes, bytes]:
        """Wait for the complete head.

        Returns:
            The head without its empty line, and the bytes after it.

        Raises:
            OSError: The connection ended before the end of the head.
            ValueError: The head is too long.
        """
        self._transport = transport
        if transport.is_closing():
            raise ConnectionResetError("the connection was closed before an answer came")
        return await self._done

    def data_received(self, data: bytes) -> None:
        """Collect the bytes and search for the end of the head."""
        if self._done.done():
            return
        searched = max(0, len(self._buffer) - len(END_OF_HEAD))
        self._buffer += data
        end = self._buffer.find(END_OF_HEAD, searched)
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self._fail(ValueError("the answer's head is too long"))
            return
        head, rest = bytes(self._buffer[:end]), bytes(self._buffer[end + len(END_OF_HEAD) :])
        if self._transport is not None:
            self._transport.pause_reading()
        self._done.set_result((head, rest))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending read if the head is not complete."""
        self._fail(exc or ConnectionResetError("the connection was closed before an answer came"))

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # otherwise asyncio logs it if no caller waits


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request line and its headers, in order and including repeated names."""

    method: str
    target: str
    headers: Headers

    def encode(self) -> bytes:
        """Return the bytes to send.

        Raises:
            ValueError: A method, target or header contains characters that would end its line.
        """
        if not _TOKEN.fullmatch(self.method):
            raise ValueError(f"method: {self.method!r} is not an HTTP method")
        if not _TARGET.fullmatch(self.target):
            raise ValueError("target: has characters that no request line may have")
        return _encode(f"{self.method} {self.target} HTTP/1.1", self.headers)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A status line and its headers, in order and including repeated names."""

    status: int
    reason: str
    headers: Headers

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Parse the bytes before the empty line.

        Raises:
            ValueError: Not an HTTP/1 response head.
        """
        status_line, *lines = raw.decode("utf-8", "surrogateescape").split("\r\n")
        match = _STATUS_LINE.fullmatch(status_line)
        if match is None:
            raise ValueError(f"not an HTTP status line: {status_line[:80]!r}")
        return cls(int(match[1]), match[2] or "", tuple(map(_parse_header, lines)))

    def encode(self) -> bytes:
        """Return the bytes to send.

        Raises:
            ValueError: A header contains characters that would end its line.
        """
        return _encode(f"HTTP/1.1 {self.status} {self.reason}", self.headers)

    def get(self, name: str, default: str = "") -> str:
        """Return the value of the first header of that name, ignoring case."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), default)


def _parse_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not _TOKEN.fullmatch(name) or _FORBIDDEN_IN_VALUE.search(value):
        raise ValueError(f"not an HTTP header: {line[:80]!r}")
    return name, value.strip(" \t")


def _encode(first_line: str, headers: Headers) -> bytes:
    for name, value in headers:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"header {name!r}: not a header name")
        if _FORBIDDEN_IN_VALUE.search(value):
            raise ValueError(f"header {name}: its value has a line break")
    lines = [first_line, *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + END_OF_HEAD


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
