"""Limits on the responses of one API server: bytes, and JSON values before they are decoded.

A lower API server may be hostile. It shares a process with other lower clusters, so none of its responses may
exhaust the common memory or block the event loop for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from controller_runtime.errors import ResponseTooLarge, without_frames
from controller_runtime.util.responsive import Slicer

MIB = 1024 * 1024
_SAMPLES, _SAMPLED = 64, 16
"""Number of samples of a body, and the divisor: a sixteenth of the body is sampled."""
_SLICE = 64 * 1024
"""Bytes that are split at once, because the parts take many times the memory of the bytes."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """The limits of one response, and the number of concurrent large responses."""

    body: int = 10 * MIB
    """Bytes of a body, decompressed. A page of a list that exceeds this is requested again with fewer
    objects."""
    error_body: int = 64 * 1024
    """Bytes that are read from the body of an error response."""
    line: int = 10 * MIB
    r"""Bytes of one watch event. etcd stores 1.5 MiB per object; as JSON each byte may take six (``\\u003c``)."""
    large: int = 256 * 1024
    """Bytes above which a body is large."""
    large_at_once: int = 1
    """Large bodies received or decoded at the same time; others wait unread. One costs up to 80 MiB."""
    values: int = 600_000
    """JSON values of one body. Each takes up to 70 bytes of memory, even with only two bytes of JSON
    (``[]``)."""


class ResponseReader:
    """Reads the responses of one API server within limits."""

    def __init__(
        self, limits: ResponseLimits, *, cluster: str, server: str, rejected: Callable[[str], None]
    ) -> None:
        """Create a reader; cluster and server are named in errors.

        ``rejected`` is called for each response that exceeds a limit: ``body``, ``line``, ``values`` or ``depth``.
        """
        self.limits = limits
        self._large = asyncio.Semaphore(limits.large_at_once)
        self._client_name = f"{server}: cluster {cluster or 'without a name'}"
        self._rejected = rejected

    async def read(
        self, response: aiohttp.ClientResponse, what: str, *, held: contextlib.AsyncExitStack
    ) -> bytes:
        """Return a body; the body of an error response is cut at its limit.

        Args:
            response: a response with an unread body.
            what: method and path, for errors.
            held: the stack that holds the slot of a large body until the stack is closed.

        Raises:
            ResponseTooLarge: the body of a successful response exceeds the limit.
        """
        is_error = response.status >= 300
        limit = self.limits.error_body if is_error else self.limits.body
        if (response.content_length or 0) > limit and not is_error:
            raise self._too_large(what, "body", f"{limit:,} bytes")
        slicer = Slicer()
        parts: list[bytes] = []
        size = 0
        while chunk := await self.next_chunk(response):
            if size <= self.limits.large < size + len(chunk):
                await held.enter_async_context(self._large)
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                response.close()  # otherwise the rest would be received, too
                if is_error:
                    break
                raise self._too_large(what, "body", f"{limit:,} bytes")
            await slicer.tick()
        return b"".join(parts)[:limit]

    @staticmethod
    async def next_chunk(response: aiohttp.ClientResponse) -> bytes:
        """Return the next received bytes of a body; empty at its end.

        Raises:
            aiohttp.ClientError: the connection broke.
        """
        try:
            return await response.content.readany()
        except aiohttp.ClientError as error:
            # The stream keeps its exception. The traceback would keep the frames with the stream and its
            # bytes until a garbage collection: 200 MiB with a hostile server.
            raise copy.copy(error) from without_frames(error)
        except RuntimeError as error:  # raised by aiohttp if the connection is lost between two of its steps
            raise response.content.exception() or aiohttp.ClientConnectionError(str(error)) from error

    def check_values(self, raw: bytes, what: str) -> None:
        """Check the number of JSON values of a body before decoding it.

        Each value except the first follows a comma, a bracket or a brace. These are counted in a sixteenth of
        the bytes at random places, because counting all takes as long as decoding. If the estimate exceeds
        the limit, all outside of strings are counted: commas in a string of one tenant must not make lists of
        all tenants fail.

        Raises:
            ResponseTooLarge: the body has more values than the limit.
        """
        if len(raw) <= self.limits.values:
            return
        stride = len(raw) // _SAMPLES
        size = stride // _SAMPLED
        found = 0
        for start in range(0, len(raw) - stride, stride):
            begin = start + random.randrange(stride)  # noqa: S311 - unpredictable for the server
            found += sum(raw.count(sign, begin, begin + size) for sign in (b",", b"[", b"{"))
        if found * _SAMPLED > self.limits.values and _has_more_values(raw, self.limits.values):
            raise self._too_large(what, "values", f"{self.limits.values:,} JSON values")

    def line_too_long(self, what: str) -> ResponseTooLarge:
        """Count an event that exceeds the limit and return the error for it."""
        return self._too_large(what, "line", f"{self.limits.line:,} bytes for one event")

    def too_deep(self, what: str) -> ResponseTooLarge:
        """Count a body or event that is nested too deeply and return the error for it."""
        return self._too_large(what, "depth", "about 1,000 nested JSON values")

    def _too_large(self, what: str, limit: str, size: str) -> ResponseTooLarge:
        self._rejected(limit)
        return ResponseTooLarge(f"{self._client_name}: the response to {what} exceeds the limit of {size}")


def _has_more_values(raw: bytes, limit: int) -> bool:
    """Report whether a JSON text has more commas, brackets and braces outside of strings than the limit."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # the remaining quotes delimit strings
    if plain.count(b'"') > 4 * (limit + 1):
        return True  # a value has at most two strings, including its name
    found, is_string = 0, False
    for start in range(0, len(plain), _SLICE):
        parts = plain[start : start + _SLICE].split(b'"')
        outside = b"".join(parts[is_string::2])
        found += sum(outside.count(sign) for sign in (b",", b"[", b"{"))
        if found > limit:
            return True
        is_string ^= len(parts) % 2 == 0
    return False
