"""Raw connections to an API server, directly or through the proxy of its kubeconfig, and HTTP/1.1 heads on them.

They become tunnels or streams. A proxy is an ``http``, ``https`` or ``socks5`` URL, as in client-go. An ``https`` proxy is
verified, and may verify us, with the TLS settings of the server: the kubeconfig's CAs and client certificate.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

from controller_runtime.apimachinery.readable import one_line
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.auth.proxies import PORTS, SOCKS, ip_address, without_password
from controller_runtime.client.requests import connect_failure
from controller_runtime.errors import ProxyError
from controller_runtime.serving.raw_connection import Connection, start_tls
from controller_runtime.tls.pem import TlsMaterial

MAX_HEAD = 64 * 1024
"""Maximum bytes of a response head. A Kubernetes API server sends less than four thousand."""
END_OF_HEAD = b"\r\n\r\n"
Headers = tuple[tuple[str, str], ...]
Length = Callable[[bytearray, int], int | None]
"""Returns the length of a reply, from the bytes received so far and the number of those seen before; None: not complete.

It raises ValueError for bytes that are no such reply.
"""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[\x21-\x7e]+")
_FORBIDDEN_IN_VALUE = re.compile(r"[\x00\r\n]")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-9]\d\d)(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
_EXCERPT = 200
"""Characters of a refusal's body in an error."""
_SOCKS_FAILURES = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "time to live expired",
    7: "command not supported",
    8: "address type not supported",
}
"""Reply codes of RFC 1928, section 6."""
_NO_LOGIN, _PASSWORD = 0, 2
"""Methods of authentication."""


def authority(host: str, port: int) -> str:
    """Return host and port as in a Host header."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def ask(transport: asyncio.Transport, sent: bytes, length: Length) -> tuple[bytes, bytes]:
    """Send bytes and wait for the reply to them.

    Args:
        transport: a connection. It is aborted if there is no reply, and otherwise its reading is paused.
        sent: the bytes to send.
        length: finds the end of the reply.

    Returns:
        The reply, and the bytes received after it.

    Raises:
        OSError: the connection ended before the end of the reply.
        ValueError: the bytes are no such reply, or it is too long.
    """
    reader = ReplyReader(length)
    transport.set_protocol(reader)
    transport.write(sent)
    transport.resume_reading()
    try:
        return await reader.read(transport)
    except BaseException:
        transport.abort()
        raise


async def ask_head(transport: asyncio.Transport, sent: bytes) -> tuple[ResponseHead, bytes]:
    """Send a request and wait for the head of its response, see ``ask``."""
    raw, rest = await ask(transport, sent, _length_of_head)
    try:
        return ResponseHead.parse(raw), rest
    except ValueError:
        transport.abort()
        raise


def _length_of_head(received: bytearray, seen: int) -> int | None:
    """Return the length of an HTTP head with its empty line, see ``Length``."""
    end = received.find(END_OF_HEAD, max(0, seen - len(END_OF_HEAD)))
    return None if end < 0 else end + len(END_OF_HEAD)


class ReplyReader(asyncio.Protocol):
    """Collects bytes up to the end of a reply, then pauses the transport's reading."""

    def __init__(self, length: Length) -> None:
        """Create for one reply, whose end ``length`` finds."""
        self._length = length
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    async def read(self, transport: asyncio.Transport) -> tuple[bytes, bytes]:
        """Wait for the complete reply; return and raise as ``ask``."""
        self._transport = transport
        if transport.is_closing():
            raise ConnectionResetError("the connection was closed before an answer came")
        return await self._done

    def data_received(self, data: bytes) -> None:
        """Collect the bytes and search for the end of the reply."""
        if self._done.done():
            return
        seen = len(self._buffer)
        self._buffer += data
        try:
            length = self._length(self._buffer, seen)
        except ValueError as error:
            self._fail(error)
            return
        if length is None or length > len(self._buffer):
            if len(self._buffer) > MAX_HEAD:
                self._fail(ValueError("the answer's head is too long"))
            return
        if self._transport is not None:
            self._transport.pause_reading()
        self._done.set_result((bytes(self._buffer[:length]), bytes(self._buffer[length:])))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending read if the reply is not complete."""
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
        """Parse a head; the empty line at its end may be missing.

        Raises:
            ValueError: Not an HTTP/1 response head.
        """
        status_line, *lines = raw.removesuffix(END_OF_HEAD).decode("utf-8", "surrogateescape").split("\r\n")
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


async def connect(config: ConnectionConfig, *, context: ssl.SSLContext | None = None) -> Connection:
    """Return a connection to an API server, with TLS for an https server, and with reading paused if it has none.

    The caller limits the time. On cancellation, nothing stays open.

    Args:
        config: the server and its proxy.
        context: TLS settings for the server; None: those of the configuration.

    Raises:
        ProxyError: the proxy cannot be reached, or refused the connection.
        OSError: the server cannot be reached, or its certificate is not valid.
    """
    if config.proxy_url:
        connection = await _through_proxy(config, config.proxy_url)
    else:
        connection = await _tcp(config.host, config.port)
    context = context or config.ssl
    if context is None:
        return connection
    return await _tls(connection, context, config.tls_server_name or config.host)


async def _tcp(host: str, port: int) -> Connection:
    loop = asyncio.get_running_loop()
    # A single address needs no race of connections, whose tasks may leave a socket open at the end of the loop.
    delay = None if ip_address(host) else 0.25
    connecting = loop.create_task(
        loop.create_connection(_Silent, host, port, happy_eyeballs_delay=delay), name=f"connect to {host}"
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
    transport = await start_tls(
        connection.transport, asyncio.Protocol(), context, server_hostname=server_name
    )
    return Connection(transport, connection.raw)


async def _through_proxy(config: ConnectionConfig, url: str) -> Connection:
    """Return a connection to the server through the proxy at a URL.

    Raises:
        ProxyError: the proxy cannot be reached, or refused the connection.
    """
    proxy, named = urlsplit(url), f"the proxy {without_password(url)}"
    try:
        connection = await _tcp(proxy.hostname or "", proxy.port or PORTS[proxy.scheme])
        if proxy.scheme == "https":
            context = config.ssl or TlsMaterial(named).context()
            connection = await _tls(connection, context, proxy.hostname or "")
        ask = _ask_socks if proxy.scheme in SOCKS else _ask_http
        try:
            refusal = await ask(connection.transport, config.host, config.port, _login(proxy))
        except BaseException:
            connection.transport.abort()
            raise
    except TimeoutError:
        raise
    except ssl.SSLError as error:
        raise ProxyError(f"{named}: {error}") from None
    except OSError as error:
        raise ProxyError(f"{named}: {connect_failure(error)}") from None
    except ValueError as error:
        raise ProxyError(f"{named}: {error}") from None
    if refusal:
        connection.transport.abort()
        raise ProxyError(f"{named} answered {refusal}")
    return connection


def _login(proxy: SplitResult) -> tuple[str, str] | None:
    """Return user and password in a proxy's URL; None: it has none."""
    if proxy.username is None:
        return None
    return unquote(proxy.username), unquote(proxy.password or "")


async def _ask_http(transport: asyncio.Transport, host: str, port: int, login: tuple[str, str] | None) -> str:
    """Ask an HTTP proxy for a tunnel; return its refusal, empty: the tunnel is open."""
    target = authority(host, port)
    headers: Headers = (("Host", target),)
    if login is not None:
        pair = base64.b64encode(":".join(login).encode()).decode()
        headers += (("Proxy-Authorization", f"Basic {pair}"),)
    sent = RequestHead("CONNECT", target, headers).encode()
    head, rest = await ask_head(transport, sent)
    if head.status // 100 == 2:
        return ""
    why = one_line(rest.decode(errors="replace"))[:_EXCERPT]
    return f"{head.status} {head.reason}{f': {why}' if why else ''}"


async def _ask_socks(
    transport: asyncio.Transport, host: str, port: int, login: tuple[str, str] | None
) -> str:
    """Ask a SOCKS5 proxy for a tunnel (RFC 1928, RFC 1929); return its refusal, empty: the tunnel is open.

    The proxy resolves names, because often only it can.
    """
    methods = bytes([_NO_LOGIN] if login is None else [_NO_LOGIN, _PASSWORD])
    chosen, _ = await ask(transport, bytes([5, len(methods)]) + methods, _length_of_pair)
    if chosen[1] == _PASSWORD and login is not None:
        user, password = (_sized(each.encode(), "its user or password") for each in login)
        accepted, _ = await ask(transport, b"\x01" + user + password, _length_of_pair)
        if accepted[1]:
            return "that it does not accept the user and password"
    elif chosen[1] != _NO_LOGIN:
        return (
            "that it needs a user and password" if login is None else "that it accepts no user and password"
        )
    request = b"\x05\x01\x00" + _address(host) + port.to_bytes(2, "big")
    answer, _ = await ask(transport, request, _length_of_answer)
    code = answer[1]
    return "" if code == 0 else f"{code} ({_SOCKS_FAILURES.get(code, 'unknown code')})"


def _address(host: str) -> bytes:
    """Return a host as an address of SOCKS5."""
    address = ip_address(host)
    if address is None:
        return b"\x03" + _sized(host.encode("idna"), "the server's name")
    return (b"\x01" if address.version == 4 else b"\x04") + address.packed


def _sized(text: bytes, what: str) -> bytes:
    if len(text) > 255:
        raise ValueError(f"{what} has more than 255 bytes")
    return bytes([len(text)]) + text


def _length_of_pair(received: bytearray, _seen: int) -> int | None:
    """Return the length of a reply of version and method or status, see ``Length``."""
    if received[0] not in {1, 5}:
        raise ValueError("it does not speak SOCKS5")
    return 2


def _length_of_answer(received: bytearray, _seen: int) -> int | None:
    """Return the length of the answer to a request, see ``Length``."""
    if received[0] != 5:
        raise ValueError("it does not speak SOCKS5")
    if len(received) < 5:
        return None
    sizes = {1: 4, 3: 1 + received[4], 4: 16}
    if received[3] not in sizes:
        raise ValueError("it does not speak SOCKS5")
    return 4 + sizes[received[3]] + 2
