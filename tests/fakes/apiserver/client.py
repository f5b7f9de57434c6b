"""The client's methods over a server in memory, for controllers and informers in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from controller_runtime import consistency
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import PatchType
from controller_runtime.client.collection import ObjectList
from controller_runtime.client.limits import CacheBudget
from controller_runtime.client.transport import Outage
from controller_runtime.objects import Object, WatchEvent, from_dict
from controller_runtime.resources import Resource
from tests.fakes.apiserver.selectors import selection
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body, Commit, object_key

T = TypeVar("T")
Items = list[T]
Batch = list[WatchEvent]
"""Aliases, because ``MemoryClient.list`` hides the built-in name inside the class."""
Fault = Callable[[str, str, str], Exception | None]
"""Verb, plural (with ``/subresource``) and key of a request → the error that answers it; None: it is served."""


def refusing(error: Exception, *plurals: str) -> Fault:
    """Return a fault for the requests of some plurals (with ``/subresource``), or for all requests."""
    return lambda _verb, asked, _key: error if not plurals or asked in plurals else None


def served(_verb: str, _plural: str, _key: str) -> None:
    """Be no fault."""


class _Watch:
    """One open watch: its plural, and whether there is something to send."""

    def __init__(self, plural: str) -> None:
        self.plural = plural
        self.changed = asyncio.Event()
        self.bookmarked = False


class MemoryClient:
    """A client of one server. Pass it to a controller in place of ``client.Client``.

    Subclasses override ``send`` to delay or lose requests.
    """

    field_manager = "virtual-node"

    def __init__(self, server: Server, *, who: str = "") -> None:
        """Create a client; ``who`` is noted with each change that it makes."""
        self.server, self.who = server, who
        self.cluster = server.name
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.caches = CacheBudget(0, cluster="test")
        self.config = ConnectionConfig("https://192.0.2.1:6443", source="kubeconfig")  # resolves no name
        self.served_certificate = None
        self.calls: list[tuple[str, str, str]] = []
        """Verb, plural (with ``/subresource``) and key of all requests."""
        self.fault: Fault = served
        self.ends_watches = False
        """Whether a fault also ends open watches, at their next event."""
        self.held: set[str] = set()
        """Plurals whose watches bring nothing for now."""
        self.bookmark_seconds: float | None = 60.0
        """Between two bookmarks of a watch; None: none."""
        self._watches: list[_Watch] = []
        self.reconnected: list[Callable[[], None]] = []
        """Functions that the real client calls when its connection is replaced."""
        server.observers.append(self._committed)

    def asked(self, verb: str, plural: str) -> Any:
        """Return the keys of the requests of one verb and plural."""
        return [key for called, where, key in self.calls if (called, where) == (verb, plural)]

    def release(self, plural: str) -> None:
        """Let the watches of a held plural continue, with all that they missed."""
        self.held.discard(plural)
        self.wake()

    def wake(self, plural: str = "") -> None:
        """Let the watches of a plural look for changes; empty: all watches."""
        for watch in self._watches:
            if plural in {"", watch.plural}:
                watch.changed.set()

    def bookmark(self, *plurals: str) -> None:
        """Send a bookmark on each watch of these plurals."""
        for watch in self._watches:
            if watch.plural in plurals:
                watch.bookmarked = True
        self.wake()

    def on_reconnect(self, reconnected: Callable[[], None]) -> None:
        """As ``Transport.on_reconnect``."""
        self.reconnected.append(reconnected)

    async def send(
        self, verb: str, plural: str, key: str, action: Callable[[], T], *, subresource: str | None = None,
        dry_run: bool = False,
    ) -> T:  # fmt: skip
        """Perform a request: ``action`` asks the server. ``key`` is the selection of a list or watch."""
        plural = f"{plural}/{subresource}" if subresource else plural
        self.calls.append((verb, plural, key))
        if (error := self.fault(verb, plural, key)) is not None:
            raise error
        return action()

    # --- the methods of client.Client -----------------------------------------------------------------

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, **_: Any
    ) -> dict[str, Any]:
        plural, key = resource.plural, _key(resource, namespace, name)
        return await self.send("get", plural, key, lambda: copied(self.server.get(plural, key)))

    async def list(
        self, resource: Resource, *, namespace: str | None = None, label_selector: str | None = None,
        field_selector: str | None = None, transform: Callable[[Object], Object | None] | None = None, **_: Any,
    ) -> ObjectList:  # fmt: skip
        selected = {
            "namespace": namespace,
            "label_selector": label_selector,
            "field_selector": field_selector,
        }
        return ObjectList(*await self.list_as(resource, transform or (lambda item: item), **selected))

    async def list_as(
        self, resource: Resource, convert: Callable[[Object], T | None], *, namespace: str | None = None,
        label_selector: str | None = None, field_selector: str | None = None, **_: Any,
    ) -> tuple[Items[T], str]:  # fmt: skip
        matches = selection(namespace, label_selector, field_selector)
        selected = _described(namespace, label_selector, field_selector)
        items, version = await self.send(
            "list", resource.plural, selected, lambda: self.server.list(resource.plural, matches)
        )
        return [kept for item in items if (kept := convert(item)) is not None], version

    async def ping(self, **_: Any) -> None:
        await self.send("get", "ping", "", lambda: None)

    async def exists(self, resource: Resource, **selection: Any) -> bool:
        return bool((await self.list(resource, **selection)).items)

    async def watch_batches(
        self, resource: Resource, *, resource_version: str, namespace: str | None = None,
        label_selector: str | None = None, field_selector: str | None = None, **_: Any,
    ) -> AsyncIterator[Batch]:  # fmt: skip
        plural, matches = resource.plural, selection(namespace, label_selector, field_selector)
        selected, seen = _described(namespace, label_selector, field_selector), int(resource_version)
        await self.send("watch", plural, selected, lambda: [*self.server.since(plural, seen, matches)])
        watch = _Watch(plural)
        self._watches.append(watch)
        try:
            while True:
                watch.changed.clear()
                if self.ends_watches and (error := self.fault("watch", plural, selected)) is not None:
                    raise error
                if plural not in self.held:
                    batch = [*self.server.since(plural, seen, matches)]
                    seen = self.server.version
                    if watch.bookmarked:
                        batch.append(bookmark(seen))
                        watch.bookmarked = False
                    if batch:
                        yield batch
                        continue
                try:
                    async with asyncio.timeout(self.bookmark_seconds):
                        await watch.changed.wait()
                except TimeoutError:
                    watch.bookmarked = True
        finally:
            self._watches.remove(watch)

    async def watch(self, resource: Resource, **options: Any) -> AsyncIterator[WatchEvent]:
        async for batch in self.watch_batches(resource, **options):
            for event in batch:
                yield event

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None,
        name: str | None = None, subresource: str | None = None, params: Mapping[str, str] | None = None, **_: Any,
    ) -> Body:  # fmt: skip
        plural, dry_run = resource.plural, _is_dry_run(params)
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **copied(body)}
        name = name or whole.get("metadata", {}).get("name") or ""
        key = object_key(plural, namespace or whole.get("metadata", {}).get("namespace"), name)
        if subresource:
            _key(resource, namespace, name)

        def write(*, who: str) -> Body:
            if subresource == "token":
                return {"status": {"token": "t", "expirationTimestamp": "2099-01-01T00:00:00Z"}}
            if subresource == "eviction":
                return self.server.evict(key, whole, who=who, dry_run=dry_run)
            return self.server.create(plural, whole, who=who, namespace=namespace, dry_run=dry_run)

        return await self._write(resource, "create", key, write, subresource, dry_run=dry_run)

    async def patch(
        self, resource: Resource, name: str, patch: Any, *, namespace: str | None = None,
        subresource: str | None = None, patch_type: PatchType = PatchType.MERGE,
        params: Mapping[str, str] | None = None, **_: Any,
    ) -> Body:  # fmt: skip
        key, change, dry_run = _key(resource, namespace, name), copied(patch), _is_dry_run(params)
        write = partial(
            self.server.patch, resource.plural, key, change, subresource=subresource, patch_type=patch_type,
            dry_run=dry_run,
        )  # fmt: skip
        return await self._write(resource, "patch", key, write, subresource, dry_run=dry_run)

    async def update(
        self, resource: Resource, body: Mapping[str, Any], *, subresource: str | None = None, **_: Any
    ) -> Body:
        whole = copied(body)
        key = _key(resource, whole["metadata"].get("namespace"), whole["metadata"]["name"])
        write = partial(self.server.update, resource.plural, key, whole, subresource=subresource)
        return await self._write(resource, "update", key, write, subresource)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str | None = None, uid: str | None = None,
        resource_version: str | None = None, grace_period_seconds: int | None = None, **_: Any,
    ) -> Body:  # fmt: skip
        key = _key(resource, namespace, name)
        write = partial(
            self.server.delete, resource.plural, key, uid=uid, resource_version=resource_version,
            grace=grace_period_seconds,
        )  # fmt: skip
        return await self._write(resource, "delete", key, write, None)

    def _committed(self, commit: Commit) -> None:
        self.wake("" if self.ends_watches else commit.plural)

    async def _write(
        self, resource: Resource, verb: str, key: str, action: Callable[..., Body], subresource: str | None, *,
        dry_run: bool = False,
    ) -> Body:  # fmt: skip
        def act() -> Body:
            return copied(action(who=self.who))  # that of a late request may differ by then

        answer = await self.send(verb, resource.plural, key, act, subresource=subresource, dry_run=dry_run)
        if not dry_run:
            consistency.wrote(self, resource, answer, is_created=verb == "create")
        return answer


def bookmark(version: int) -> WatchEvent:
    """Return the event that says how far a watch has come."""
    return WatchEvent("BOOKMARK", from_dict({"metadata": {"resourceVersion": str(version)}}))


def _key(resource: Resource, namespace: str | None, name: str) -> str:
    """Return the key of an object that a request names.

    Raises:
        NotFound: no object can have the name, as ``client.Client`` finds.
    """
    resource.path(namespace=namespace or "default", name=name)
    return object_key(resource.plural, namespace, name)


def _described(namespace: str | None, labels: str | None, fields: str | None) -> str:
    return fields or labels or namespace or ""


def copied(body: Any) -> Body:
    """Return the object as it comes over the wire: the server shares no object with its clients."""
    answer: Body = msgspec.json.decode(msgspec.json.encode(body))
    return answer


def _is_dry_run(params: Mapping[str, str] | None) -> bool:
    return bool(params and params.get("dryRun"))
