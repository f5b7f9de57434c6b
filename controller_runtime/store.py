"""The indexed cache of an informer, and the memory that its objects of one namespace may use.

With a limit (``NamespaceBudget``), one tenant cannot use the memory of the others. An object that does not fit is kept as
a stub, which has a name and a uid, but no content and no resourceVersion. Objects that fit stay, because an object that
grows beyond the limit displaces no other object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from controller_runtime.objects import Object, ObjectMeta

Objects = list[Object]
"""An alias, because ``Store.list`` hides the built-in name inside the class."""
Keys = list[str]
Indexer = Callable[[Object], Iterable[str]]
K = TypeVar("K", bound=Hashable)


class Store:
    """Stores objects by key, and by the values that indexers return for them.

    Objects are returned in the order in which they were first stored, so that the order of writes is
    reproducible.
    """

    def __init__(self, indexers: Mapping[str, Indexer] | None = None) -> None:
        self._indexers = dict(indexers or {})
        self._objects: dict[str, Object] = {}
        self._indexes: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self._indexers}
        self._index_users: Counter[str] = Counter(self._indexers)
        self.changes = 0
        """Number of changes so far. Who has read everything needs to read again only if it has grown."""

    def add_indexers(self, indexers: Mapping[str, Indexer]) -> None:
        """Add indexes of all objects; an index that exists stays, with one user more."""
        self._index_users.update(indexers.keys())
        for name, indexer in indexers.items():
            if name not in self._indexers:
                index = self._indexes[name] = {}
                self._indexers[name] = indexer
                for key, cached in self._objects.items():
                    for value in set(indexer(cached)):
                        index.setdefault(value, {})[key] = None

    def drop_indexers(self, names: Iterable[str]) -> None:
        """Remove the indexes that have no other user."""
        for name in names:
            self._index_users[name] -= 1
            if not self._index_users[name]:
                del self._index_users[name], self._indexers[name], self._indexes[name]

    def get(self, key: str) -> Object | None:
        """Return the object with this key (``namespace/name``), or None."""
        return self._objects.get(key)

    def list(self) -> Objects:
        """Return all objects."""
        return list(self._objects.values())

    def keys(self) -> Keys:
        """Return all keys."""
        return [*self._objects]

    def by_index(self, index: str, value: str) -> Objects:
        """Return the objects for which the indexer returns this value."""
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def index_keys(self, index: str, value: str) -> Keys:
        """Return the keys of the objects for which the indexer returns this value."""
        return list(self._indexes[index].get(value, ()))

    def has_index(self, index: str) -> bool:
        """Report whether there is an index of this name. In a shared cache, an index exists only while its user runs."""
        return index in self._indexes

    def count(self, index: str, value: str) -> int:
        """Return the number of objects for which the indexer returns this value."""
        return len(self._indexes[index].get(value, ()))

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def put(self, key: str, new: Object) -> Object | None:
        """Store an object; return the object that it replaces, or None."""
        old = self._objects.get(key)
        self._objects[key] = new
        self.changes += 1
        if self._indexers:
            self._reindex(key, old, new)
        return old

    def remove(self, key: str) -> Object | None:
        """Remove an object and return it; None if there is none."""
        old = self._objects.pop(key, None)
        if old is not None:
            self.changes += 1
            if self._indexers:
                self._reindex(key, old, None)
        return old

    def _reindex(self, key: str, old: Object | None, new: Object | None) -> None:
        for name, indexer in self._indexers.items():
            before = set(indexer(old)) if old is not None else set()
            after = set(indexer(new)) if new is not None else set()
            index = self._indexes[name]
            for value in before - after:
                del index[value][key]
                if not index[value]:
                    del index[value]
            for value in after - before:
                index.setdefault(value, {})[key] = None


def stub(whole: Object) -> Object:
    """Return an object without its content."""
    metadata = ObjectMeta(
        name=whole.name,
        namespace=whole.namespace,
        uid=whole.uid,
        creation_timestamp=whole.metadata.creation_timestamp,
        deletion_timestamp=whole.metadata.deletion_timestamp,
    )
    return Object(metadata, whole.api_version, whole.kind)


def is_stub(found: Object) -> bool:
    """Report whether an object is kept without its content."""
    return not found.resource_version


class NamespaceBudget(Generic[K]):
    """Counts the memory of objects by namespace (``Object.memory``)."""

    def __init__(self, limit: int, *, free: int = 0, shrink: Callable[[Object], Object] = stub) -> None:
        """Create an empty budget.

        Args:
            limit: maximum bytes per namespace; 0: no limit.
            free: bytes of each object that are not counted, for kinds with very many small objects.
            shrink: returns the stub of an object.
        """
        self._limit = limit
        self._free = free
        self._shrink = shrink
        self._sizes: dict[K, tuple[str, int]] = {}
        self._sums: Counter[str] = Counter()
        self._stubs: dict[K, tuple[str, int, str]] = {}
        """Namespaces, sizes and versions of the complete objects of which only stubs are kept."""
        self._stubbed: Counter[str] = Counter()

    def fit(self, key: K, found: Object) -> Object:
        """Count an object and return it, or return a stub if its namespace has no room for it.

        With a stub, the object's last counted size stays counted, because its copies still have that content.
        """
        namespace, size = found.namespace, max(0, found.memory - self._free)
        before = self._sizes.get(key, ("", 0))[1]
        if self._limit and size > before and not self._fits(key, namespace, size):
            if key not in self._stubs:
                self._stubbed[namespace] += 1
            self._stubs[key] = (namespace, size, found.resource_version)
            return self._shrink(found)
        self.forget(key)
        if size:
            self._sizes[key] = (namespace, size)
            self._sums[namespace] += size
        return found

    def forget(self, key: K) -> None:
        """Stop counting an object that is gone or not needed."""
        self._drop_stub(key)
        if (size := self._sizes.pop(key, None)) is not None:
            _subtract(self._sums, *size)

    def counted(self) -> set[K]:
        """Return the keys of all objects that are counted or kept as stubs."""
        return {*self._sizes, *self._stubs}

    def fits_now(self, key: K) -> bool:
        """Return True, once per stub, if its object would fit now; the caller then reads the object again."""
        if key not in self.fitting([key]):
            return False
        self._drop_stub(key)
        return True

    def fitting(self, keys: Iterable[K] | None = None) -> dict[K, str]:
        """Return the versions of stubbed objects that would fit alone now, by key; ``keys`` limits the search."""
        found = {}
        for key in [*self._stubs] if keys is None else keys:
            namespace, size, version = self._stubs.get(key, ("", -1, ""))
            if size >= 0 and self._fits(key, namespace, size):
                found[key] = version
        return found

    def stubs(self, namespace: str) -> int:
        """Return how many objects of a namespace are kept as stubs."""
        return self._stubbed[namespace]

    def _drop_stub(self, key: K) -> None:
        if (mark := self._stubs.pop(key, None)) is not None:
            _subtract(self._stubbed, mark[0], 1)

    def _fits(self, key: K, namespace: str, size: int) -> bool:
        return self._sums[namespace] - self._sizes.get(key, ("", 0))[1] + size <= self._limit


def _subtract(counts: Counter[str], name: str, count: int) -> None:
    """Subtract a number, and remove the name at 0. The operator ``-=`` visits the names of all namespaces."""
    counts[name] -= count
    if counts[name] <= 0:
        del counts[name]
