"""Counts the memory of all caches of one API server, so that one server cannot use the memory of the others.

A server may be hostile, and its users may create as many objects as their quotas allow. The limits of single
responses (``response_limits.py``) do not bound the sum.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import Gauge

from controller_runtime.errors import CacheFull
from controller_runtime.objects import Object

_BYTES = Gauge("virtual_node_cache_bytes", "Approximate bytes of objects in informer caches.", ["cluster"])
_WATERMARK = 0.75
"""Share of the limit above which namespaces with more than their share get no further objects."""


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

    def has_room(self, namespace: str) -> bool:
        """Report whether a namespace may get further objects.

        Above three quarters of the limit, only namespaces with less than an equal share of the limit may, so that one
        tenant cannot fill the caches for all.
        """
        if self._sum <= self.limit * _WATERMARK:
            return True
        return self._sums[namespace] <= self.limit * _WATERMARK / max(1, len(self._sums))

    def _full(self) -> CacheFull:
        largest = ", ".join(
            f"{namespace or 'objects without a namespace'} {size / 1024**2:.1f} MiB"
            for namespace, size in self._sums.most_common(3)
        )
        return CacheFull(
            f"the objects of cluster {self._cluster} that have to be cached exceed {self.limit // 1024**2} MiB "
            f"(largest: {largest or 'one list'}); delete objects there, or raise cacheBytes of this cluster"
        )
