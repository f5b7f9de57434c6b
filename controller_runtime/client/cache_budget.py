"""Counts the memory of all caches of one API server, so that one server cannot use the memory of the others.

A server may be hostile, and its users may create as many objects as their quotas allow. The limits of single
responses (``response_limits.py``) do not bound the sum.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import Gauge

from controller_runtime.errors import CacheFull
from controller_runtime.objects import Object

_BYTES = Gauge("virtual_node_cache_bytes", "Approximate bytes of objects in informer caches.", ["cluster"])
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
            _BYTES.labels(cluster).set_function(lambda: 0 if (budget := this()) is None else budget.used)

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
