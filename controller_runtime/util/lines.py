"""Splits a stream of chunks into lines."""

from __future__ import annotations


class LineTooLong(Exception):  # noqa: N818 - the sender's error
    """A line is longer than the limit."""


class LineSplitter:
    """Returns the complete lines of each chunk; chunks may be cut anywhere."""

    def __init__(self, limit: int) -> None:
        """Create a splitter with a maximum of bytes for one line."""
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in this chunk, without their line feeds and without blank lines.

        Raises:
            LineTooLong: a line exceeds the limit.
        """
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self._keep(tail)
            return []
        lines = head.split(b"\n")
        if self._rest:
            self._keep(lines[0])
            lines[0] = bytes(self._rest)
            self._rest = bytearray()
        self._keep(tail)
        if len(head) > self._limit and any(len(line) > self._limit for line in lines):
            raise LineTooLong
        return [line for line in lines if line]

    def _keep(self, part: bytes) -> None:
        self._rest += part
        if len(self._rest) > self._limit:
            raise LineTooLong

    @property
    def has_rest(self) -> bool:
        """Report whether there is an incomplete line."""
        return bool(self._rest)
