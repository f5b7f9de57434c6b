"""Limits of what the responses of one API server may cost: bytes, and JSON values when they are decoded.

A lower API server may be hostile. It shares a process with other lower clusters, so none of its responses may use up
the memory of all, or hold the event loop for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from dataclasses import dataclass

import aiohttp

from controller_runtime.client.transport_metrics import TransportMetrics
from controller_runtime.errors import ResponseTooLarge, without_frames
from controller_runtime.util.yielding import Slicer

MIB = 1024 * 1024
_SAMPLES, _SAMPLED = 64, 16
"""Samples of a body, and the part of it that they are together, as a divisor."""
_SLICE = 64 * 1024
"""Bytes that are split at once: the pieces take many times their memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one response may have, and how many large ones there may be at once."""

    body: int = 10 * MIB
    """Bytes of a body, decompressed. A page of a list that has more is asked for again with fewer objects."""
    error_body: int = 64 * 1024
    """Bytes that are read of an error response's body."""
    line: int = 10 * MIB
    """Bytes of one watch event. etcd stores 1.5 MiB per object; as JSON each byte may take six (``\\u003c``)."""
    large: int = 256 * 1024
    """Bytes from which on a body counts as large."""
    large_at_once: int = 1
    """Large bodies that are received or decoded at the same time; further ones wait, unread. One costs up to 80 MiB."""
    values: int = 600_000
    """JSON values of one body. Each takes up to 70 bytes of memory, be it two bytes of JSON (``[]``)."""


class ResponseReader:
    """Reads the responses of one API server within limits."""

    def __init__(self, limits: Limits, *, cluster: str, server: str, metrics: TransportMetrics) -> None:
        """Set up.

        Args:
            limits: of each response.
            cluster: the cluster's name, for errors.
            server: its URL, for errors.
            metrics: count the responses that exceed a limit.
        """
        self.limits = limits
        self._large = asyncio.Semaphore(limits.large_at_once)
        self._who = f"{server}: cluster {cluster or 'without a name'}"
        self._metrics = metrics

    async def read(
        self, response: aiohttp.ClientResponse, what: str, *, held: contextlib.AsyncExitStack
    ) -> bytes:
        """Read a body; of an error response as much as the limit allows.

        Args:
            response: its body has not been read.
            what: method and path.
            held: gives the room of a large body back when it is closed.

        Raises:
            ResponseTooLarge: a successful response exceeds the limit.
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
                response.close()  # or the rest would be received, too
                if is_error:
                    break
                raise self._too_large(what, "body", f"{limit:,} bytes")
            await slicer.tick()
        return b"".join(parts)[:limit]

    @staticmethod
    async def next_chunk(response: aiohttp.ClientResponse) -> bytes:
        """Return what has been received of a body, at least one byte; empty at its end.

        Raises:
            aiohttp.ClientError: the connection broke.
        """
        try:
            return await response.content.readany()
        except aiohttp.ClientError as error:
            # The stream keeps its exception, whose traceback would keep the frames that hold the stream and what was
            # read, until a garbage collection: 200 MiB beside a hostile server.
            raise copy.copy(error) from without_frames(error)
        except RuntimeError as error:  # aiohttp's, when the connection is lost between two of its steps
            raise response.content.exception() or aiohttp.ClientConnectionError(str(error)) from error

    def check_values(self, raw: bytes, what: str) -> None:
        """Check before decoding how many values that would make.

        Each value but the first follows a comma, a bracket or a brace. They are counted in a sixteenth of the bytes,
        at random places: counting all takes as long as decoding. Where they seem too many they are counted all, without
        those in strings: a tenant's object may be full of commas, and must not make the lists of others fail.

        Raises:
            ResponseTooLarge: more than the limit.
        """
        if len(raw) <= self.limits.values:
            return
        stride = len(raw) // _SAMPLES
        size = stride // _SAMPLED
        found = 0
        for start in range(0, len(raw) - stride, stride):
            begin = start + random.randrange(stride)  # noqa: S311 - where a server cannot know
            found += sum(raw.count(sign, begin, begin + size) for sign in (b",", b"[", b"{"))
        if found * _SAMPLED > self.limits.values and _has_more_values(raw, self.limits.values):
            raise self._too_large(what, "values", f"{self.limits.values:,} JSON values")

    def line_too_long(self, what: str) -> ResponseTooLarge:
        """Count an event that exceeds the limit, and return the error for it."""
        return self._too_large(what, "line", f"{self.limits.line:,} bytes for one event")

    def _too_large(self, what: str, limit: str, size: str) -> ResponseTooLarge:
        self._metrics.rejected(limit)
        return ResponseTooLarge(f"{self._who}: the response to {what} exceeds the limit of {size}")


def _has_more_values(raw: bytes, limit: int) -> bool:
    """Whether a JSON text has more commas, brackets and braces outside of strings; stops where it knows."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # the quotes that are left begin and end strings
    if plain.count(b'"') > 4 * (limit + 1):
        return True  # a value is at most two strings, with its name
    found, is_string = 0, False
    for start in range(0, len(plain), _SLICE):
        parts = plain[start : start + _SLICE].split(b'"')
        outside = b"".join(parts[is_string::2])
        found += sum(outside.count(sign) for sign in (b",", b"[", b"{"))
        if found > limit:
            return True
        is_string ^= len(parts) % 2 == 0
    return False
