"""The indexed cache of an informer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from controller_runtime.objects import Object

Objects = list[Object]
"""An alias, because ``Store.list`` hides the built-in name inside the class."""
Keys = list[str]
Indexer = Callable[[Object], Iterable[str]]


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
        """Report whether there is an index of this name; one of a shared cache exists while its user runs."""
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
        if self._indexers:
            self._reindex(key, old, new)
        return old

    def remove(self, key: str) -> Object | None:
        """Remove an object and return it; None if there is none."""
        old = self._objects.pop(key, None)
        if old is not None and self._indexers:
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
