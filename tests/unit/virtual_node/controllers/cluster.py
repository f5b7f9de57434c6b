"""A cluster of controllers' tests: an API server in memory, its one client, and a scheduler that binds every pod."""

from __future__ import annotations

from controller_runtime.cache.informer import Informer
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from tests.fakes.apiserver.client import MemoryClient, copied
from tests.fakes.apiserver.selectors import selection
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body, Commit

_NOW = "2026-01-01T00:00:00Z"


class Cluster(MemoryClient):
    """One cluster. Pass it to a controller in place of a client."""

    def __init__(self, name: str) -> None:
        self._fed: dict[Informer, int] = {}
        super().__init__(Server(name, now=lambda _version: _NOW))
        self.put, self.change, self.remove = self.server.put, self.server.change, self.server.remove
        self.server.observers.append(self._schedule)

    @property
    def objects(self) -> dict[tuple[str, str], Body]:
        """Return all objects by plural and key."""
        return {
            (plural, key): body
            for plural, bodies in self.server.objects.items()
            for key, body in bodies.items()
        }

    def find(self, plural: str, key: str) -> Body | None:
        """Return a copy of an object, or None."""
        found = self.server.find(plural, key)
        return copied(found) if found is not None else None

    def the(self, plural: str, key: str) -> Body:
        """Return a copy of an object that exists."""
        return copied(self.objects[plural, key])

    def feed(self, *informers: Informer) -> None:
        """Store all changes in informers that do not run, as soon as they are made and not held."""
        self._fed |= dict.fromkeys(informers, 0)
        self.wake()

    def fill(self, namespace: str = "shop") -> None:
        """Leave no room in the caches for further objects of a namespace."""
        self.caches = CacheBudget(1_000_000, cluster=self.cluster)
        large = {"metadata": {"name": "large", "namespace": namespace}, "spec": {"text": "x" * 800_000}}
        self.caches.change(None, from_dict(large))

    def wake(self, plural: str = "") -> None:
        super().wake(plural)
        for informer, seen in self._fed.items():
            kind = informer.resource.plural
            if plural in {"", kind} and kind not in self.held:
                self._fed[informer] = self.server.version
                found = informer._reflector.selection
                matches = selection(*map(found.get, ("namespace", "label_selector", "field_selector")))
                for event in self.server.since(kind, seen, matches):
                    informer.change(event.type, event.object)

    def _schedule(self, commit: Commit) -> None:
        if commit.plural == "pods" and commit.verb == "create":
            self.server.bind(commit.key, "n1")
