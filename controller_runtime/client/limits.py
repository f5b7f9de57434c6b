"""Limits on what one API server costs: the bytes and JSON values of its responses, and the memory of its caches.

A lower API server may be hostile. It shares a process with other lower clusters, so none of its responses may
exhaust the common memory or block the event loop for long.

The limits of single responses do not bound their sum, because the server's users may create as many objects as
their quotas allow. So the memory of all caches of the server is counted, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from controller_runtime.errors import CacheFull, ResponseTooLarge
from controller_runtime.objects import Object
from controller_runtime.util.event_loop import Slicer

if TYPE_CHECKING:
    from prometheus_client import Gauge

MIB = 1024 * 1024
_SAMPLES, _SAMPLED = 64, 16
"""Number of samples of a body, and the divisor: a sixteenth of the body is sampled."""
_SLICE = 64 * 1024
"""Bytes that are split at once, because the parts take many times the memory of the bytes."""
_USABLE = 0.9
"""Share of the limit that is given to namespaces. The rest is for objects that grow without being asked, such as
statuses."""
_GREED = 5
"""A namespace may have this multiple of what is left. So one namespace gets 75 % of the limit, two get 41 % each, three
28 %, and there is always room for another one (Choudhury and Hahne, dynamic queue length thresholds, 1998)."""
_SMALL, _USABLE_BY_SMALL = 0.01, 0.95
"""Namespaces with at most this share of the limit may use more of it, because several greedy namespaces that come one
after another leave little."""
_PATIENCE = 30.0
"""Seconds for which the growth of an object counts that no cache shows yet."""


@functools.cache
def bytes_gauge() -> Gauge:
    """Return the metric of the memory of caches, which ``transport`` registers at its import."""
    # Not imported for the commands for people, which have no caches and start without it.
    from prometheus_client import Gauge  # noqa: PLC0415

    return Gauge("virtual_node_cache_bytes", "Approximate bytes of objects in informer caches.", ["cluster"])


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


class Response(Protocol):
    """The head of a response, whose body is not read yet."""

    @property
    def status(self) -> int:
        """Return the HTTP status."""

    @property
    def content_length(self) -> int | None:
        """Return the bytes of the body; None: unknown."""

    def close(self) -> None:
        """Close the connection, without reading the body."""


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
        self,
        response: Response,
        next_chunk: Callable[[], Awaitable[bytes]],
        what: str,
        *,
        held: contextlib.AsyncExitStack,
    ) -> bytes:
        """Return a body; the body of an error response is cut at its limit.

        Args:
            response: a response with an unread body.
            next_chunk: returns the next received bytes of the body; empty at its end.
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
        while chunk := await next_chunk():
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


class CacheBudget:
    """Counts bytes by namespace. The informers of one client share it."""

    def __init__(self, limit: int, *, cluster: str) -> None:
        """Create an empty budget.

        Args:
            limit: maximum bytes; 0: no limit, and nothing is counted.
            cluster: the cluster's name, for the error and the metric.
        """
        self.limit = limit
        self._cluster = cluster
        self._sum = 0
        self._reading = 0
        self._sums: Counter[str] = Counter()
        self._coming: dict[tuple[str, str], tuple[str, int, float]] = {}
        """Namespaces, bytes and times of growth that no cache shows yet, by kind and key of the object; oldest first."""
        self._coming_sums: Counter[str] = Counter()
        if limit:
            # A weak reference, because the metric lives as long as the process.
            this = weakref.ref(self)
            bytes_gauge().labels(cluster).set_function(
                lambda: 0 if (budget := this()) is None else budget.used
            )

    @property
    def used(self) -> int:
        """Return the counted bytes."""
        return self._sum

    def change(self, old: Object | None, new: Object | None) -> None:
        """Count an object that replaces another in a cache.

        Raises:
            CacheFull: the limit is exceeded; the new object is not counted, and must not be stored.
        """
        changed = new or old
        if not self.limit or changed is None:
            return
        growth = (0 if new is None else new.memory) - (0 if old is None else old.memory)
        if growth > 0 and self._sum + growth > self.limit:
            raise self._full()
        namespace = changed.namespace
        if new is not None:
            self._arrived(new.kind, new.key)
        self._sum += growth
        self._sums[namespace] += growth
        if not self._sums[namespace]:
            del self._sums[namespace]

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[Object], None]]:
        """Yield a function that counts the objects of a list while it is read; they count until the block ends.

        The function raises CacheFull when the limit is exceeded.
        """
        read = 0

        def count(listed: Object) -> None:
            nonlocal read
            size = listed.memory
            read += size
            self._reading += size
            if self._sum + self._reading > self.limit:
                raise self._full()

        try:
            yield count if self.limit else lambda _listed: None
        finally:
            self._reading -= read

    def has_room(self, namespace: str, growth: int = 0) -> bool:
        """Report whether the objects of a namespace may grow by some bytes, so that no tenant fills the caches for all."""
        if not self.limit:
            return True
        oldest = time.monotonic() - _PATIENCE
        while self._coming and (first := next(iter(self._coming.items())))[1][2] < oldest:
            self._arrived(*first[0])
        used = self._sum + self._coming_sums.total() + growth
        wanted = self._sums[namespace] + self._coming_sums[namespace] + growth
        if wanted <= self.limit * _SMALL:
            return used <= self.limit * _USABLE_BY_SMALL
        return wanted <= _GREED * (self.limit * _USABLE - used)

    @contextlib.contextmanager
    def growing(self, kind: str, namespace: str, name: str, growth: int) -> Iterator[None]:
        """Count the growth of an object that the block creates or changes, until a cache shows it; not if the block fails."""
        key = f"{namespace}/{name}"
        self._arrived(kind, key)
        self._coming[kind, key] = (namespace, growth, time.monotonic())
        self._coming_sums[namespace] += growth
        try:
            yield
        except BaseException:
            self._arrived(kind, key)
            raise

    def _arrived(self, kind: str, key: str) -> None:
        if (coming := self._coming.pop((kind, key), None)) is not None:
            namespace, size, _ = coming
            self._coming_sums -= Counter({namespace: size})

    def _full(self) -> CacheFull:
        largest = ", ".join(
            f"{namespace or 'objects without a namespace'} {size / 1024**2:.1f} MiB"
            for namespace, size in self._sums.most_common(3)
        )
        return CacheFull(
            f"the objects of cluster {self._cluster} that have to be cached exceed {self.limit // 1024**2} MiB "
            f"(largest: {largest or 'one list'}); delete objects there, or raise cacheBytes of this cluster"
        )
