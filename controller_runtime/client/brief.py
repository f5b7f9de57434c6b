"""A client for programs that send a few requests and end, such as commands that people wait for.

It reads HTTP/1.1 from asyncio's streams, because importing aiohttp takes longer than the requests. It has no rate limit, no
metrics and no watches. Servers behind a proxy need ``Client``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Self, Unpack
from urllib.parse import urlsplit

from multidict import CIMultiDict

from controller_runtime import errors
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client import requests
from controller_runtime.client.limits import ResponseLimits, ResponseReader
from controller_runtime.client.requests import CONNECT_TIMEOUT, RequestOptions, Retry, with_query
from controller_runtime.client.verbs import Head, Verbs
from controller_runtime.errors import ConnectionFailed, NotConnected

_AT_ONCE = 4
"""Maximum number of connections. A TLS handshake takes longer than a small request."""
_HEAD = 64 * 1024
"""Maximum bytes of the head of a response; API servers send less than 4 KiB."""
_READ = 256 * 1024
_NO_BODY = frozenset({204, 304})


class _Malformed(Exception):  # noqa: N818 - never leaves this module
    """The server does not send HTTP/1.1."""


_BROKEN = (OSError, EOFError, ssl.SSLError, _Malformed, asyncio.LimitOverrunError)
"""Errors of a connection that was made."""


class BriefClient(Verbs):
    """Sends requests to one API server over at most four kept-alive connections."""

    def __init__(
        self, config: ConnectionConfig, *, user_agent: str, timeout: float = 30.0, cluster: str = ""
    ) -> None:
        """Create a client; connections open on first use. The arguments are those of ``Transport``.

        Raises:
            ValueError: the server is behind a proxy.
        """
        if config.proxy_url:
            raise ValueError("a server behind a proxy needs Client")
        self.config = config
        self.timeout = timeout
        self.field_manager = requests.field_manager(user_agent)
        self.reader = ResponseReader(
            ResponseLimits(), cluster=cluster, server=config.server, rejected=lambda _limit: None
        )
        self._headers = {**requests.headers_of(user_agent), "Host": urlsplit(config.server).netloc}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            self._idle.pop().close()
        await self.config.close()

    @contextlib.asynccontextmanager
    async def receive(
        self, method: str, path: str, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[bytes]:
        """Send one request, with retries, and yield the complete body of the response; see ``Transport.receive``."""
        async with contextlib.AsyncExitStack() as held:
            yield (await self._exchange(method, path, options, held))[1]

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, *, head_timeout: float | None = None
    ) -> AsyncIterator[Head]:
        """Send a request and yield the head of its response. The body is read, but there is no access to it."""
        async with contextlib.AsyncExitStack() as held:
            yield _ReadHead((await self._exchange(method, path, {"timeout": head_timeout}, held))[0])

    async def _exchange(
        self, method: str, path: str, options: RequestOptions, held: contextlib.AsyncExitStack
    ) -> tuple[Mapping[str, str], bytes]:
        body, timeout = options.get("body"), options.get("timeout")
        requests.check_size(method, path, body)
        target = self.config.path_prefix + with_query(path, options.get("params"))
        retry, loop = Retry(self.config, method, path), asyncio.get_running_loop()
        seconds = self.timeout if timeout is None else timeout
        deadline = loop.time() + seconds
        while True:
            sent = kubeconfig.merged(await retry.credentials(), options.get("headers"))
            try:
                async with asyncio.timeout(seconds), self._slots, self._connected() as connected:
                    response = await connected.send(method, target, self._headers, sent, body)
                    answer = await self.reader.read(
                        response, response.next_chunk, f"{method} {path}", held=held
                    )
            except _BROKEN as error:
                await held.aclose()
                if isinstance(error, TimeoutError) or not retry.after_break(is_disconnect=True):
                    raise self._failure(error) from error
            else:
                if response.status < 300:
                    return response.headers, answer
                await held.aclose()
                failure = errors.error_from_response(response.status, answer, response.headers)
                await retry.after(failure, left=deadline - loop.time())
            seconds = max(0.05, deadline - loop.time())

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connection]:
        """Yield a connection; keep it for later requests if its last response was read completely."""
        # Connections made with another client certificate must not be used any more.
        fitting = [one for one in self._idle if one.context is self.config.ssl]
        if fitting:
            connected = fitting[-1]
            self._idle.remove(connected)
        else:
            connected = await self._connect()
        try:
            yield connected
        finally:
            if connected.is_reusable:
                self._idle.append(connected)
            else:
                connected.close()

    async def _connect(self) -> _Connection:
        config = self.config
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                reader, writer = await asyncio.open_connection(
                    config.host,
                    config.port,
                    ssl=config.ssl,
                    server_hostname=config.tls_server_name or config.host if config.ssl else None,
                    happy_eyeballs_delay=0.25,
                    limit=_READ,
                )
        except ssl.SSLError as error:
            raise NotConnected(f"{config.server}: cannot connect: {error}") from error
        except TimeoutError as error:
            raise NotConnected(f"{config.server}: no answer in time (connection timeout)") from error
        except OSError as error:
            raise NotConnected(f"{config.server}: {requests.connect_failure(error)}") from error
        return _Connection(reader, writer, config.ssl)

    def _failure(self, error: Exception) -> ConnectionFailed:
        if isinstance(error, TimeoutError):
            return ConnectionFailed(f"{self.config.server}: no answer in time")
        text = "" if isinstance(error, asyncio.IncompleteReadError) else " ".join(str(error).split())
        text = text or "the server closed the connection"
        return ConnectionFailed(f"{self.config.server}: {text}")


@dataclass(frozen=True, slots=True)
class _ReadHead:
    headers: Mapping[str, str]


class _Connection:
    """A connection, which sends one request at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None
    ) -> None:
        self.context = context
        self._reader = reader
        self._writer = writer
        self._response: _Response | None = None

    @property
    def is_reusable(self) -> bool:
        """Report whether the last response was read completely, and the server keeps the connection."""
        return self._response is not None and self._response.is_complete and self._response.keeps_alive

    def close(self) -> None:
        """Close the connection now."""
        self._writer.transport.abort()

    async def send(
        self,
        method: str,
        target: str,
        ours: Mapping[str, str],
        more: Mapping[str, str],
        body: bytes | None,
    ) -> _Response:
        """Send a request and return the head of its response.

        Raises:
            OSError, EOFError, _Malformed, asyncio.LimitOverrunError: the connection cannot be used.
        """
        self._response = None
        replaced = {name.lower() for name in more}
        lines = [f"{method} {target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in ours.items() if name.lower() not in replaced]
        lines += [f"{name}: {value}" for name, value in more.items()]
        if body is not None or method not in {"GET", "HEAD"}:
            lines.append(f"Content-Length: {len(body or b'')}")
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        await self._writer.drain()
        while True:
            head = await self._reader.readuntil(b"\r\n\r\n")
            if len(head) > _HEAD:
                raise _Malformed(f"a response has more than {_HEAD:,} bytes of headers")
            response = self._response = _Response(head, self._reader, self.close)
            if response.status >= 200:
                return response


class _Response:
    """A response with an unread body."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, close: Callable[[], None]) -> None:
        """Parse the head of a response; ``close`` closes its connection.

        Raises:
            _Malformed: it is not HTTP/1.1.
        """
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
            raise _Malformed(f"the answer is not HTTP: {first[:100]!r}")
        self.status = int(code)
        self.headers: CIMultiDict[str] = CIMultiDict()
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            self.headers.add(name, value.strip())
        self._reader = reader
        self.close = close
        wish = self.headers.get("Connection", "").lower()
        self.keeps_alive = version == "HTTP/1.1" and "close" not in wish
        self._is_chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        length = self.headers.get("Content-Length", "")
        self.content_length = (
            int(length) if length.isascii() and length.isdigit() and not self._is_chunked else None
        )
        self._left = 0 if self.status in _NO_BODY else self.content_length
        """Bytes of the body, or of its current chunk, that are not read; None: unknown."""
        if self._is_chunked and self.status not in _NO_BODY:
            self._left = None
        self.is_complete = self._left == 0

    async def next_chunk(self) -> bytes:
        """Return the next received bytes of the body; empty at its end.

        Raises:
            OSError, EOFError, _Malformed, asyncio.LimitOverrunError: the connection broke.
        """
        if self.is_complete:
            return b""
        if self._is_chunked and not self._left:
            self._left = await self._chunk_size()
            if not self._left:
                self.is_complete = True
                return b""
        data = await self._reader.read(_READ if self._left is None else min(self._left, _READ))
        if self._left is None:  # the body ends with the connection
            self.is_complete, self.keeps_alive = not data, False
            return data
        if not data:
            raise EOFError("the server closed the connection in the middle of a response")
        self._left -= len(data)
        if self._is_chunked:
            if not self._left:
                await self._reader.readuntil(b"\r\n")
        elif not self._left:
            self.is_complete = True
        return data

    async def _chunk_size(self) -> int:
        """Read the line before a chunk; after the last chunk, also the trailers. Return the size of the chunk."""
        line = await self._reader.readuntil(b"\r\n")
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise _Malformed(f"the size of a chunk is not a number: {line[:100]!r}") from None
        if size < 0:
            raise _Malformed("the size of a chunk is negative")
        while not size and await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass
        return size
