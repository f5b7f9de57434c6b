"""A client for programs that send a few requests and end, such as commands that people wait for.

It speaks HTTP/1.1 with h11 over asyncio's streams, because importing aiohttp takes longer than the requests. It has no rate
limit, no metrics and no watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Self, Unpack
from urllib.parse import urlsplit

import h11
from multidict import CIMultiDict

from controller_runtime import errors
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client import dialing, requests
from controller_runtime.client.limits import ResponseLimits, ResponseReader
from controller_runtime.client.requests import CONNECT_TIMEOUT, RequestOptions, Retry, with_query
from controller_runtime.client.verbs import Head, Verbs
from controller_runtime.errors import ConnectionFailed, NotConnected

_AT_ONCE = 4
"""Maximum number of connections. A TLS handshake takes longer than a small request."""
_HEAD = 64 * 1024
"""Maximum bytes of the head of a response; API servers send less than 4 KiB."""
_READ = 256 * 1024
_BROKEN = (OSError, EOFError, h11.ProtocolError)
"""Errors of a connection that was made."""


class BriefClient(Verbs):
    """Sends requests to one API server over at most four kept-alive connections."""

    def __init__(
        self, config: ConnectionConfig, *, user_agent: str, timeout: float = 30.0, cluster: str = ""
    ) -> None:
        """Create a client; connections open on first use. The arguments are those of ``Transport``."""
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
        left = self.timeout if timeout is None else timeout
        what = f"{method} {path}"
        while True:
            response: _Response | None = None
            sent = kubeconfig.merged(await retry.credentials(), options.get("headers"))
            try:
                # The wait for a connection is not counted: many requests take longer together than a single request may.
                async with self._slots:
                    deadline = loop.time() + left
                    async with asyncio.timeout_at(deadline), self._connected() as connected:
                        response = await connected.send(method, target, self._headers, sent, body)
                        answer = await self.reader.read(response, response.next_chunk, what, held=held)
            except _BROKEN as error:
                await held.aclose()
                if isinstance(error, TimeoutError) and response is not None and response.status < 300:
                    raise requests.too_slow(self.config, what) from error
                if isinstance(error, TimeoutError) or not retry.after_break(is_disconnect=True):
                    raise self._failure(error) from error
            else:
                if response.status < 300:
                    return response.headers, answer
                await held.aclose()
                failure = errors.error_from_response(response.status, answer, response.headers)
                await retry.after(failure, left=deadline - loop.time())
            left = max(0.05, deadline - loop.time())

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
                made = await dialing.connect(config)
        except ssl.SSLError as error:
            raise NotConnected(f"{config.server}: cannot connect: {error}") from error
        except TimeoutError as error:
            raise NotConnected(f"{config.server}: no answer in time (connection timeout)") from error
        except OSError as error:
            raise NotConnected(f"{config.server}: {requests.connect_failure(error)}") from error
        reader = asyncio.StreamReader(limit=_READ)
        protocol = asyncio.StreamReaderProtocol(reader)
        made.transport.set_protocol(protocol)
        protocol.connection_made(made.transport)
        made.transport.resume_reading()
        writer = asyncio.StreamWriter(made.transport, protocol, reader, asyncio.get_running_loop())
        return _Connection(reader, writer, config.ssl)

    def _failure(self, error: Exception) -> ConnectionFailed:
        if isinstance(error, TimeoutError):
            return ConnectionFailed(f"{self.config.server}: no answer in time")
        text = " ".join(str(error).split()) or "the server closed the connection"
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
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD)

    @property
    def is_reusable(self) -> bool:
        """Report whether the last response was read completely, and the server keeps the connection."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

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
            OSError, EOFError, h11.ProtocolError: the connection cannot be used.
        """
        if self.is_reusable:
            self._http.start_next_cycle()
        replaced = {name.lower() for name in more}
        headers = [(name, value) for name, value in ours.items() if name.lower() not in replaced]
        headers += more.items()
        if body is not None or method not in {"GET", "HEAD"}:
            headers.append(("Content-Length", str(len(body or b""))))
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        events = [
            h11.Request(method=method, target=target, headers=encoded),
            *([h11.Data(data=body)] if body else ()),
            h11.EndOfMessage(),
        ]
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()
        while not isinstance(event := await self._event(), h11.Response):
            pass  # an informational response
        return _Response(self, event)

    async def next_chunk(self) -> bytes:
        """Return the next received bytes of the body; empty at its end.

        Raises:
            OSError, EOFError, h11.ProtocolError: the connection broke.
        """
        while isinstance(event := await self._event(), h11.Data):
            if event.data:
                return bytes(event.data)
        return b""

    async def _event(self) -> h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_READ)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise EOFError
            self._http.receive_data(data)
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise EOFError  # also if the server switches to another protocol
        return event


class _Response:
    """A response with an unread body."""

    def __init__(self, connection: _Connection, head: h11.Response) -> None:
        self.status = head.status_code
        self.headers = CIMultiDict((name.decode(), value.decode("latin-1")) for name, value in head.headers)
        length = self.headers.get("Content-Length")
        self.content_length = None if length is None else int(length)
        self.close = connection.close
        self.next_chunk = connection.next_chunk
