"""HTTP/1.1 heads as bytes, with protection against header injection and strict parsing. No IO.

Only upgrade requests and their responses need this. The bytes after a 101 are copied without parsing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

END_OF_HEAD = b"\r\n\r\n"

Headers = tuple[tuple[str, str], ...]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[\x21-\x7e]+")
_FORBIDDEN_IN_VALUE = re.compile(r"[\x00\r\n]")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-9]\d\d)(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")


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
