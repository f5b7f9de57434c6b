"""Lines out of a stream of chunks."""

from __future__ import annotations


class LineSplitter:
    """Gives the whole lines that each chunk completes; chunks may be cut anywhere, lines may be of any length."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, without their line feeds; blank ones are left out."""
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self._parts.append(tail)
            return []
        lines = b"".join((*self._parts, head)).split(b"\n")
        self._parts = [tail] if tail else []
        return [line for line in lines if line]

    @property
    def has_rest(self) -> bool:
        """Whether a line has begun that is not complete."""
        return any(self._parts)
