"""Limits the bytes of referenced upper objects that are kept for one upper namespace.

An object that does not fit is kept as a stub, which has a name and a uid, but no content and no
resourceVersion. Pods that need the object wait, and its lower copy stays as it is. Objects that fit stay,
because an object that grows beyond the limit displaces no other object.
"""

from __future__ import annotations

from collections import Counter

from controller_runtime.objects import Object, ObjectMeta
from virtual_node.controllers.base.object_key import ObjectKey


class ObjectBudget:
    """Counts the bytes of objects, encoded as JSON, by upper namespace."""

    def __init__(self, limit: int) -> None:
        """Set the limit of bytes per namespace."""
        self._limit = limit
        self._sizes: dict[ObjectKey, int] = {}
        self._sums: Counter[str] = Counter()
        self._stubs: dict[ObjectKey, int] = {}
        """Sizes of the complete objects of which only stubs are kept."""

    def fit(self, key: ObjectKey, found: Object) -> Object:
        """Count an object and return it, or return a stub if its namespace has no room for it.

        With a stub, the object's last counted size stays counted, because the lower copy still has that
        content.
        """
        size = found.size
        if size > self._sizes.get(key, 0) and not self._fits(key, size):
            self._stubs[key] = size
            metadata = ObjectMeta(name=found.name, namespace=found.namespace, uid=found.uid)
            return Object(metadata, found.api_version, found.kind)
        self.forget(key)
        self._sizes[key] = size
        self._sums[key.namespace] += size
        return found

    def forget(self, key: ObjectKey) -> None:
        """Stop counting an object that no pod needs."""
        self._stubs.pop(key, None)
        self._sums -= Counter({key.namespace: self._sizes.pop(key, 0)})

    def fits_now(self, key: ObjectKey) -> bool:
        """Return True, once per stub, if its object would fit now; the caller then reads the object again."""
        size = self._stubs.get(key)
        if size is None or not self._fits(key, size):
            return False
        del self._stubs[key]
        return True

    def _fits(self, key: ObjectKey, size: int) -> bool:
        return self._sums[key.namespace] - self._sizes.get(key, 0) + size <= self._limit


def is_stub(found: Object) -> bool:
    """Report whether an object is kept without its content."""
    return not found.resource_version
