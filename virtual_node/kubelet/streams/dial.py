"""Opens a raw connection to a lower API server and sends an upgrade request on it."""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.serving.raw_connection import Connection, start_tls
from virtual_node.kubelet.streams.http_head import END_OF_HEAD, Headers, RequestHead, ResponseHead

MAX_HEAD = 64 * 1024
"""Maximum bytes of a response head. A Kubernetes API server sends less than four thousand."""

MAX_ERROR_BODY = 64 * 1024
_BODY_TIMEOUT = 10.0
"""Seconds to read the body of an error."""


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
