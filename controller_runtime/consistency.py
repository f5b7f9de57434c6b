"""Own-write consistency: a key is not reconciled from a cache older than our last write for it (KEP-5647).

A controller records its writes for each key. The key is not reconciled until the caches of the written
resources show the writes, because an older cache would lead to the same decision again. The
resourceVersions of one resource are increasing numbers (KEP-5504).

This process notes in its caches which objects it creates. An object that is deleted before a cache shows it has no event if the
cache lists again meanwhile. The cache then reports its deletion (``Informer.expect``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client import Counter

from controller_runtime.objects import Object, from_dict
from controller_runtime.resources import Resource
from controller_runtime.store import Store

K = TypeVar("K", bound=Hashable)
_SKIPS = Counter(
    "virtual_node_stale_sync_skips_total",
    "Reconciliations delayed because a cache did not contain our last write yet.",
    ["name"],
)
_PATIENCE = 30.0
"""Maximum seconds that a key waits for a write to appear: the watch may be delayed, or the server was restored
from a backup."""


class Cache(Protocol):
    """A cache that follows a resource."""

    @property
    def store(self) -> Store:
        """Return the objects of the cache."""

    @property
    def resource_version(self) -> str:
        """Return the last resourceVersion that the cache has read."""

    def expect(self, created: Object) -> None:
        """Record an object that exists and that the cache may not show yet."""


@dataclass(frozen=True, slots=True)
class _Write:
    caches: set[Cache]
    key: str
    uid: str
    version: int
    at: float

    def is_shown(self) -> bool:
        found = [(cache, cache.store.get(self.key)) for cache in self.caches]
        # A stub has no version (``store.NamespaceBudget``), so that of its cache counts.
        held = [
            one.resource_version or cache.resource_version
            for cache, one in found
            if one is not None and one.uid == self.uid
        ]
        if held:
            return all(as_number(version) >= self.version for version in held)
        return not found or any(as_number(cache.resource_version) >= self.version for cache, _ in found)


_Writes = dict[tuple[int, str, str], _Write]
_CACHES: dict[tuple[int, str], set[Cache]] = {}
"""The active caches by client and resource."""
_current: ContextVar[_Writes | None] = ContextVar("own-writes", default=None)


@contextlib.contextmanager
def following(client: object, resource: Resource, cache: Cache) -> Iterator[None]:
    """Register a cache during the block: our writes of ``resource`` through ``client`` must appear in the cache."""
    what = (id(client), resource.qualified)
    caches = _CACHES.setdefault(what, set())
    caches.add(cache)
    try:
        yield
    finally:
        caches.discard(cache)
        if not caches:
            _CACHES.pop(what, None)


def wrote(client: object, resource: Resource, answer: Mapping[str, Any], *, is_created: bool = False) -> None:
    """Record the answer to a write for the key that the current task reconciles, if any.

    A created object is noted in the caches of its resource.
    """
    writes, metadata = _current.get(), answer.get("metadata") or {}
    caches = _CACHES.get((id(client), resource.qualified))
    version = as_number(metadata.get("resourceVersion") or "")
    if not caches or not version:
        return
    if is_created:
        created = from_dict(answer)
        for cache in caches:
            cache.expect(created)
    if writes is None:
        return
    namespace, name = metadata.get("namespace"), metadata.get("name") or ""
    key = f"{namespace}/{name}" if namespace else name
    now = asyncio.get_running_loop().time()
    writes[id(client), resource.qualified, key] = _Write(caches, key, metadata.get("uid") or "", version, now)


class OwnWrites(Generic[K]):
    """Stores, for each key of one controller, the last writes that the caches may not show yet."""

    def __init__(self, name: str) -> None:
        self._writes: dict[K, _Writes] = {}
        self._waiting: set[K] = set()
        self._skips = _SKIPS.labels(name)

    @contextlib.contextmanager
    def noting(self, key: K) -> Iterator[None]:
        """Record the writes that the current task makes for a key during the block."""
        writes = self._writes.get(key, {})
        token = _current.set(writes)
        try:
            yield
        finally:
            _current.reset(token)
            if writes:
                self._drop_old()
                self._writes[key] = writes

    def must_wait(self, key: K) -> bool:
        """Report whether a key must wait for a cache that does not show our last writes for the key; count waits."""
        writes = self._writes.pop(key, None)
        self._waiting.discard(key)
        if writes is None:
            return False
        now = asyncio.get_running_loop().time()
        left = {what: one for what, one in writes.items() if now - one.at < _PATIENCE and not one.is_shown()}
        if not left:
            return False
        self._writes[key] = left
        self._waiting.add(key)
        self._skips.inc()
        return True

    def _drop_old(self) -> None:
        """Forget writes that no key waits for any more. Many keys are not reconciled again after their last write."""
        now = asyncio.get_running_loop().time()
        while self._writes:
            oldest = next(iter(self._writes))  # ``must_wait`` removes a key before its next writes
            if oldest in self._waiting or any(
                now - write.at < _PATIENCE for write in self._writes[oldest].values()
            ):
                break
            del self._writes[oldest]

    def is_waiting(self, key: K) -> bool:
        """Report whether a key was queued before the caches showed our last writes for it, so that it must run again."""
        return key in self._waiting


def as_number(version: str) -> int:
    """Return a resourceVersion as a number; 0 if it is not a number."""
    return int(version) if version.isascii() and version.isdigit() else 0
