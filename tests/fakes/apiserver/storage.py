"""What an API server stores: objects, their versions, and the history that watches read. No time passes in here."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from controller_runtime import resources
from controller_runtime.apimachinery.strategic_merge import merged
from controller_runtime.errors import Expired, NotFound
from controller_runtime.objects import Object, WatchEvent, from_dict
from controller_runtime.resources import Resource
from tests.fakes.apiserver.rules import new_uid, stamp
from tests.fakes.apiserver.selectors import Matches

Body = dict[str, Any]
Objects = list[Object]
"""An alias, because ``Storage.list`` hides the built-in name inside the class."""
_RESOURCES = {found.plural: found for found in vars(resources).values() if isinstance(found, Resource)}

_CLUSTER_SCOPED = {"csidrivers", *(found.plural for found in _RESOURCES.values() if not found.namespaced)}


@dataclass(frozen=True, slots=True)
class Commit:
    """One change of what is stored."""

    version: int
    plural: str
    key: str
    old: Body | None
    new: Body | None
    who: str
    """The client that asked for it."""
    verb: str

    @property
    def body(self) -> Body:
        """Return the object after the change, or the last state of a deleted one."""
        body = self.new or self.old
        assert body is not None
        return body


class Storage:
    """Objects by plural and key. Returned objects must not be changed."""

    def __init__(
        self, name: str = "upper", *, namespaces: Iterable[str] = (), now: Callable[[int], str] = stamp
    ) -> None:
        """Create a server.

        Args:
            name: the cluster's name; UIDs depend on it.
            namespaces: that exist from the start.
            now: the time of a version, as in ``creationTimestamp``.
        """
        self.name = name
        self.objects: dict[str, dict[str, Body]] = defaultdict(dict)
        self.history: dict[str, list[Commit]] = defaultdict(list)
        self.version = 1
        self.floor = 0
        """Versions up to this one have been compacted away."""
        self.observers: list[Callable[[Commit], None]] = []
        self.now = now
        self._cached: dict[int, tuple[Body, Object]] = {}
        for namespace in namespaces:
            self.put("namespaces", {"metadata": {"name": namespace}, "status": {"phase": "Active"}})

    # --- reading ------------------------------------------------------------------------------------

    def find(self, plural: str, key: str) -> Body | None:
        return self.objects[plural].get(key)

    def all(self, plural: str) -> list[Body]:
        """Return all objects of a resource, sorted by key."""
        return [self.objects[plural][key] for key in sorted(self.objects[plural])]

    def get(self, plural: str, key: str) -> Body:
        """Return an object.

        Raises:
            NotFound: it does not exist.
        """
        found = self.objects[plural].get(key)
        if found is None:
            name = key.rpartition("/")[2]
            raise not_found(plural, name)
        return found

    def list(self, plural: str, matches: Matches) -> tuple[Objects, str]:
        found = [self.cached(body) for body in self.objects[plural].values() if matches(body)]
        return found, str(self.version)

    def cached(self, body: Body) -> Object:
        """Return a stored object as informers keep it."""
        entry = self._cached.get(id(body))
        if entry is None:
            entry = self._cached[id(body)] = (body, from_dict(body))
        return entry[1]

    def since(
        self, plural: str, version: int, matches: Matches, *, until: int | None = None
    ) -> Iterator[WatchEvent]:
        """Yield a watch's events after a version, until another; None: until now."""
        if version < self.floor:
            raise Expired("too old resource version", code=410, reason="Expired")
        changes = self.history[plural]
        for commit in changes[bisect.bisect_right(changes, version, key=lambda one: one.version) :]:
            if until is not None and commit.version > until:
                return
            if event := self.event(commit, matches):
                yield event

    def event(self, commit: Commit, matches: Matches) -> WatchEvent | None:
        """Return a change as a watch of a collection sees it, or None."""
        was = commit.old is not None and matches(commit.old)
        has = commit.new is not None and matches(commit.new)
        if has:
            assert commit.new is not None
            return WatchEvent("MODIFIED" if was else "ADDED", self.cached(commit.new))
        if was:
            assert commit.old is not None
            metadata = {**commit.old["metadata"], "resourceVersion": str(commit.version)}
            return WatchEvent("DELETED", from_dict({**commit.old, "metadata": metadata}))
        return None

    def changes_since(self, version: int) -> Iterator[Commit]:
        return (one for changes in self.history.values() for one in changes if one.version > version)

    def page(self, plural: str, matches: Matches, *, limit: int, after: str = "") -> tuple[Objects, str, str]:
        """Return one page of a collection, its version, and the token of the next page, empty after the last."""
        keys = [key for key, body in sorted(self.objects[plural].items()) if matches(body) and key > after]
        found = [self.cached(self.objects[plural][key]) for key in keys[: limit or None]]
        rest = keys[limit:] if limit else []
        return found, str(self.version), keys[limit - 1] if rest else ""

    # --- without rules, for tests -------------------------------------------------------------------

    def put(self, plural: str, body: Mapping[str, Any]) -> Body:
        """Store an object as it is; without a UID or creationTimestamp it gets one."""
        metadata = dict(body["metadata"])
        key = object_key(plural, metadata.get("namespace"), metadata["name"])
        metadata.setdefault("uid", new_uid(f"{self.name} {plural} {key} {self.version}"))
        metadata.setdefault("creationTimestamp", self.now(self.version))
        stored = self.objects[plural].get(key)
        return self.commit(
            plural, key, stored, {**typed(plural, body), "metadata": metadata}, who="", verb="put"
        )

    def change(self, plural: str, key: str, **fields: Any) -> Body:
        """Merge fields into an object."""
        return self.put(plural, merged(self.get(plural, key), fields))

    def replace(self, plural: str, key: str, **fields: Any) -> Body:
        """Replace top-level fields of an object."""
        return self.put(plural, {**self.get(plural, key), **fields})

    def remove(
        self, plural: str, key: str, last: Body | None = None, *, who: str = "", before: Body | None = None,
        verb: str = "delete",
    ) -> Body:  # fmt: skip
        """Remove an object at once; ``last`` is its last state."""
        stored = self.objects[plural].pop(key)
        self.version += 1
        self._notify(Commit(self.version, plural, key, before or last or stored, None, who, verb))
        return last or stored

    def commit(self, plural: str, key: str, old: Body | None, new: Body, *, who: str, verb: str) -> Body:
        self.version += 1
        new = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
        new = msgspec.json.decode(msgspec.json.encode(new))  # the writer cannot change what is stored
        self.objects[plural][key] = new
        self._notify(Commit(self.version, plural, key, old, new, who, verb))
        return new

    def _notify(self, commit: Commit) -> None:
        self.history[commit.plural].append(commit)
        for observer in list(self.observers):
            observer(commit)


def typed(plural: str, body: Mapping[str, Any]) -> Body:
    """Return an object with the apiVersion and kind of its resource, unless it has them."""
    found = _RESOURCES.get(plural)
    return {"apiVersion": found.api_version, "kind": found.kind, **body} if found else {**body}


def is_namespaced(plural: str) -> bool:
    """Report whether objects of this resource have a namespace."""
    return plural not in _CLUSTER_SCOPED


def object_key(plural: str, namespace: str | None, name: str) -> str:
    """Return the key of an object: ``namespace/name``, or the name."""
    return f"{namespace}/{name}" if namespace and is_namespaced(plural) else name


def not_found(plural: str, name: str) -> NotFound:
    """Return the error for an object that does not exist."""
    status = {"details": {"name": name, "kind": plural}}
    return NotFound(f'{plural} "{name}" not found', code=404, reason="NotFound", status=status)
