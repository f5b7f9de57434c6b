"""HTTP/1.1 heads over a raw transport, for connections that become tunnels or streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

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
