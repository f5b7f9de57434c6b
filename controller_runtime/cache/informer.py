"""A cache of one resource that follows the server and calls handlers for changes.

A ``Reflector`` reads from the server. The cache is updated before the handlers of a change are called.

In a ``BoundedInformer`` the objects of one namespace use limited memory. Objects beyond the limit are stubs
(``store.NamespaceBudget``). They are read again when there is room for them.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

import structlog
from prometheus_client import Counter, Gauge

from controller_runtime import consistency
from controller_runtime.apimachinery.matching import parse_selector
from controller_runtime.cache.reflector import Reflector
from controller_runtime.client.client import Client, find_listed
from controller_runtime.client.collection import ObjectSelection
from controller_runtime.consistency import as_number
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object
from controller_runtime.packing import Models
from controller_runtime.resources import Resource
from controller_runtime.store import Indexer, NamespaceBudget, Store, is_stub
from controller_runtime.util.event_loop import Slicer

T = TypeVar("T")
OnAdd = Callable[[Object, bool], None]
OnUpdate = Callable[[Object, Object], None]
OnDelete = Callable[[Object], None]

_LOG_PAUSE = 60.0
_EXCERPT = 500
"""Characters of an error about a malformed object, which may contain its values."""
_MOST_LEFT_OUT = 1000
"""Maximum namespaces of objects that ``keep`` refuses which an informer remembers."""
_OBJECTS = Gauge("virtual_node_cached_objects", "Objects in informer caches.", ["cluster", "resource"])
_HANDLER_ERRORS = Counter(
    "virtual_node_handler_errors_total", "Exceptions raised by event handlers.", ["cluster", "resource"]
)
_AGAIN = 30.0
"""Seconds between two checks whether stubs fit into the budgets of their namespaces now."""


BudgetKey = tuple[str, str, str]
"""Name of the informer, and key and uid of an object. The uid, because a replaced object is forgotten after the new one is counted."""


class Registration:
    """One set of handlers; ``remove``, or the end of a ``with`` block, detaches it."""

    def __init__(self, informer: Informer, handlers: Mapping[str, Callable[..., None] | None]) -> None:
        self._informer = informer
        self._handlers = handlers
        self._removed = False

    def remove(self) -> None:
        """Stop deliveries."""
        self._removed = True
        self._informer.detach(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def deliver(self, kind: str, *arguments: Any) -> None:
        """Call the handler of a kind of change; log and count its exception."""
        handler = self._handlers[kind]
        if handler is None or self._removed:
            return
        try:
            handler(*arguments)
        except Exception:  # noqa: BLE001 - must not stop other handlers
            self._informer.handler_failed()


class Informer:
    """Keeps ``store`` equal to the server's collection and calls handlers for every change."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        indexers: Mapping[str, Indexer] | None = None,
        transform: Callable[[Object], Object] | None = None,
        keep: Callable[[Object], bool] | None = None,
        after: Sequence[Informer] = (),
        name: str = "",
        is_minor: bool = False,
        **selection: Unpack[ObjectSelection],
    ) -> None:
        """Create an informer; ``run`` starts it.

        Args:
            client: the cluster.
            resource: the resource to follow.
            indexers: by index name, a function that returns an object's index values.
            transform: called on every object before it is stored; removes fields that are not needed.
            keep: called on every object as the server sent it. An object for which it returns False is treated as
                if it were not in the collection.
            after: informers that ``keep`` reads. The first list is read when these have synced.
            name: in logs and metrics; empty: the resource.
            is_minor: while the server is unreachable, other informers reconnect first; for informers of
                single objects. Applies after the first list.
            selection: the namespace to follow, and selectors.
        """
        self.resource = resource
        self.store = Store({key: _guarded(indexer) for key, indexer in (indexers or {}).items()})
        self.name = name or resource.qualified
        self._client = client
        self._keep = None if keep is None else _guarded(keep)
        self._after = after
        self._left_out: set[str] = set()
        """Namespaces of objects that ``keep`` refused since the last list began; not all, if they are too many."""
        self._namespace = selection.get("namespace")
        self._selects = parse_selector(selection.get("label_selector") or "")
        self._expected: dict[str, Object] = {}
        """Objects that the server has stored and that were not read yet, by key."""
        self._transform = _unchanged if transform is None else _guarded(transform)
        self._models = Models()
        self._reflector = Reflector(
            client,
            resource,
            self,
            selection=selection,
            transform=None if transform is None else self._transform,
            list_transform=self._listing,
            name=self.name,
            is_minor=is_minor,
        )
        self._registrations: tuple[Registration, ...] = ()
        """Replaced, never changed in place: handlers may be added or removed during an iteration."""
        self._synced = asyncio.Event()
        self._logged_at = float("-inf")
        """When the exception of a handler was last logged."""
        self._log = structlog.get_logger(informer=self.name, cluster=client.cluster)

    # --- for users --------------------------------------------------------------------------------

    def add_handler(
        self,
        *,
        on_add: OnAdd | None = None,
        on_update: OnUpdate | None = None,
        on_delete: OnDelete | None = None,
        with_cached: bool = True,
    ) -> Registration:
        """Register handlers for changes; already cached objects are delivered as adds.

        The functions are called directly and must not block; their exceptions are logged and counted.

        Args:
            on_add: called with the object, and with True if it is part of the first list or was already cached.
            on_update: called with the old and the new state.
            on_delete: called with the last known state.
            with_cached: whether to deliver already cached objects.
        """
        registration = Registration(self, {"add": on_add, "update": on_update, "delete": on_delete})
        self._registrations = (*self._registrations, registration)
        for cached in self._delivered() if with_cached else ():
            registration.deliver("add", cached, True)
        return registration

    def on_change(
        self,
        changed: Callable[[Object], None],
        deleted: Callable[[Object], None] | None = None,
        *,
        with_old: bool = False,
    ) -> Registration:
        """Register functions as ``add_handler`` does, for callers that need only one state of an object.

        Args:
            changed: called with the state of an added object and with the new state of an updated one.
            deleted: called with the last known state.
            with_old: whether ``changed`` is first called with the old state of an updated object.
        """

        def updated(old: Object, new: Object) -> None:
            if with_old:
                changed(old)
            changed(new)

        return self.add_handler(
            on_add=lambda new, _initial: changed(new), on_update=updated, on_delete=deleted
        )

    @property
    def has_synced(self) -> bool:
        """Report whether the first list has been stored completely."""
        return self._synced.is_set()

    async def wait_synced(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - returns False instead of raising
        """Wait for the first list; return False if it did not arrive within ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._synced.wait()
        except TimeoutError:
            return False
        return True

    @property
    def resource_version(self) -> str:
        """Return the last resourceVersion that was read; empty: none yet."""
        return self._reflector.resource_version

    @property
    def age(self) -> float:
        """Return the seconds since the server last answered; infinite before the first answer."""
        return self._reflector.age

    @property
    def followed_since(self) -> float:
        """Return when the server answered first, or first after a failure, on the event loop's clock; infinite before."""
        return self._reflector.followed_since

    @property
    def last_error(self) -> Exception | None:
        """Return why the server cannot be followed at the moment; None if it can."""
        return self._reflector.last_error

    async def run(self) -> None:
        """Follow the server until cancelled; retry failures with back-off.

        Raises:
            CacheFull: the objects exceed the memory that the caches of the server may use.
        """
        for informer in self._after:
            await informer.wait_synced()
        gauge = _OBJECTS.labels(self._client.cluster, self.name)
        # A weak reference, because the metric lives as long as the process and must not keep the cache of a
        # cluster that is no longer followed.
        found = weakref.ref(self.store)
        gauge.set_function(lambda: 0 if (store := found()) is None else len(store))
        with consistency.following(self._client, self.resource, self):
            await self._reflector.run()

    async def clear(self) -> None:
        """Remove all objects, with a call of the handlers for each, and list again at the next ``run``."""
        self._synced.clear()
        self._reflector.resource_version = ""
        slicer = Slicer()
        cached = self.store.keys()
        for key in cached:
            self._remove(key, None)
            await slicer.tick()

    def reconsider(self, namespace: str) -> None:
        """List the collection again if ``keep`` has refused objects of that namespace, because it may accept them now."""
        if namespace in self._left_out or len(self._left_out) >= _MOST_LEFT_OUT:
            self._left_out.clear()
            self._reflector.list_again()

    def has_read(self, version: str) -> bool:
        """Report whether the cache is at least as new as a resourceVersion."""
        return as_number(self.resource_version) >= as_number(version)

    def expect(self, created: Object) -> None:
        """Record an object that exists and that the cache may not show yet.

        If it is deleted before the cache shows it, and the cache lists instead of reading all events, handlers get the
        deletion, which nothing else reports. An object that is not in the selection is ignored.
        """
        if not self._selects(created.labels) or self._namespace not in {None, created.namespace}:
            return
        while self._expected:
            oldest = next(iter(self._expected.values()))
            if not self.has_read(oldest.resource_version):
                break
            del self._expected[oldest.key]  # not in the field selection
        cached = self.store.get(created.key)
        if cached is not None and cached.uid == created.uid:
            return
        if self.has_read(created.resource_version):
            self._deliver_deletion(created)
        else:
            self._expected[created.key] = created

    def detach(self, registration: Registration) -> None:
        """Stop deliveries to a registration."""
        self._registrations = tuple(other for other in self._registrations if other is not registration)

    def handler_failed(self) -> None:
        """Count the exception of a handler, and log it at most once a minute; the informer continues.

        A server may send thousands of malformed objects per second, and each log line has a traceback.
        """
        _HANDLER_ERRORS.labels(self._client.cluster, self.name).inc()
        now = time.monotonic()
        if now - self._logged_at >= _LOG_PAUSE:
            self._logged_at = now
            self._log.exception("event handler failed")

    def _delivered(self) -> list[Object]:
        """Return the objects of which handlers know."""
        return self.store.list()

    # --- called by the reflector -------------------------------------------------------------------

    async def replace(self, items: list[Object], version: str) -> None:
        """Store a complete list of that resourceVersion; remove cached objects that are not in it."""
        initial = not self.has_synced
        slicer = Slicer()
        gone = dict.fromkeys(self.store.keys())
        for item in items:
            gone.pop(item.key, None)
            self._store(item, initial=initial)
            await slicer.tick()
        for key in gone:
            self._remove(key, None)
            await slicer.tick()
        for missing in list(self._expected.values()):
            is_older = as_number(missing.resource_version) <= as_number(version)
            if is_older and self._expected.pop(missing.key, None) is not None:
                self._deliver_deletion(missing)
                await slicer.tick()
        self._synced.set()

    def _listing(self, count: Callable[[Object], None]) -> Callable[[Object], Object | None]:
        """Return a function that transforms the objects of one list, and counts their memory; None: ``keep`` refuses one.

        It returns the cached object if that has the listed version, so that a repeated list takes no more memory.
        """

        def listed(new: Object) -> Object | None:
            if not self._keeps(new):
                return None
            cached = self.store.get(new.key)
            if (
                cached is not None
                and cached.uid == new.uid
                and cached.resource_version == new.resource_version
            ):
                return cached
            new = self._transform(new).packed(self._models, cached)
            count(new)
            return new

        return listed

    def change(self, kind: str, changed: Object) -> None:
        """Store one change; its kind is ADDED, MODIFIED or DELETED."""
        self._reported(changed)
        if kind == "DELETED":
            self._remove(changed.key, changed)
        elif not self._keeps(changed):
            # Handlers get the state that was kept, because the new one may no longer name what it belongs to.
            self._remove(changed.key, None)
        else:
            self._store(changed.packed(self._models, self.store.get(changed.key)), initial=False)

    def _keeps(self, changed: Object) -> bool:
        if self._keep is None or self._keep(changed):
            return True
        if len(self._left_out) < _MOST_LEFT_OUT:
            self._left_out.add(changed.namespace)
        return False

    def _store(self, new: Object, *, initial: bool) -> None:
        key = new.key
        self._reported(new)
        old = self.store.get(key)
        if old is not None and old.uid != new.uid:
            # The object was replaced during a watch gap. Handlers that use the UID as key need two events.
            self._remove(key, None)
            old = None
        # Two stubs have no versions, and may differ, for example in their deletion.
        if old is not None and old.resource_version == new.resource_version and not is_stub(new):
            return
        self._client.caches.change(old, new)
        self.store.put(key, new)
        for registration in self._registrations:
            if old is None:
                registration.deliver("add", new, initial)
            else:
                registration.deliver("update", old, new)

    def _remove(self, key: str, final: Object | None) -> None:
        old = self.store.get(key)
        if old is None:
            return
        if final is None or final.uid != old.uid:
            final = old
        self.store.remove(key)
        self._client.caches.change(old, None)
        self._deliver_deletion(final)

    def _reported(self, current: Object) -> None:
        """Record that the server reported this state."""
        expected = self._expected.get(current.key)
        if expected is not None and (
            expected.uid == current.uid
            or as_number(expected.resource_version) <= as_number(current.resource_version)
        ):
            del self._expected[current.key]

    def _deliver_deletion(self, final: Object) -> None:
        for registration in self._registrations:
            registration.deliver("delete", final)

    def __repr__(self) -> str:
        return f"<Informer {self.name} objects={len(self.store)} synced={self.has_synced} rv={self._reflector.resource_version}>"


def _unchanged(listed: Object) -> Object:
    return listed


def _guarded(function: Callable[[Object], T]) -> Callable[[Object], T]:
    """Return a function that calls ``function`` and raises every error as ApiError; the reflector retries it.

    A server that sends malformed objects must not end the process, which follows other servers, too. The
    object is not skipped, because readers would treat it as deleted.
    """

    def call(found: Object) -> T:
        try:
            return function(found)
        except Exception as error:
            raise ApiError(f"{found.kind} {found.key} is malformed: {repr(error)[:_EXCERPT]}") from error

    return call


def unsynced(informers: Iterable[Informer]) -> str | None:
    """Return which informers have not stored their first list, for ``/readyz``; None if all have."""
    missing = [informer.name for informer in informers if not informer.has_synced]
    return f"not read yet: {', '.join(missing)}" if missing else None


class BoundedInformer(Informer):
    """Stores an object as a stub while its namespace exceeds its memory limit."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        budget: NamespaceBudget[BudgetKey],
        transform: Callable[[Object], Object] | None = None,
        **options: Any,
    ) -> None:
        """Create an informer; ``run`` starts it.

        Args:
            client: the cluster.
            resource: the resource to follow.
            budget: the memory per namespace. Several informers may share it. Objects without a namespace do not count.
            transform: called on every object before it is counted.
            options: as for ``Informer``.
        """
        self._budget = budget
        self._reduce = transform
        super().__init__(client, resource, transform=self._fitted, **options)
        self.add_handler(on_delete=lambda gone: budget.forget(self._budget_key(gone)))

    async def run(self) -> None:
        """Follow the server until cancelled; as ``Informer.run``, but with errors in an ExceptionGroup."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._complete_stubs())

    async def replace(self, items: list[Object], version: str) -> None:
        """Store a complete list, as ``Informer.replace``."""
        await super().replace(items, version)
        await self._forget_gone()

    async def clear(self) -> None:
        """Remove all objects, as ``Informer.clear``."""
        await super().clear()
        await self._forget_gone()

    def change(self, kind: str, changed: Object) -> None:
        """Store one change, as ``Informer.change``."""
        super().change(kind, changed)
        if kind == "DELETED":
            # The transform has counted its last state, and without a cached state no handler was called.
            self._budget.forget(self._budget_key(changed))

    async def _forget_gone(self) -> None:
        """Stop counting objects of a list that failed before it was complete, and that are gone since.

        They never were in the cache, so nothing reports their deletion.
        """
        slicer = Slicer()
        for key in self._budget.counted():
            if key[0] == self.name:
                cached = self.store.get(key[1])
                if cached is None or cached.uid != key[2]:
                    self._budget.forget(key)
            await slicer.tick()

    def _budget_key(self, found: Object) -> BudgetKey:
        return self.name, found.key, found.uid

    def _fitted(self, found: Object) -> Object:
        kept = found if self._reduce is None else self._reduce(found)
        return self._budget.fit(self._budget_key(found), kept) if found.namespace else kept

    async def _complete_stubs(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN)
            for key, version in self._budget.fitting().items():
                # Asked again, because an object that was read meanwhile may have taken the room.
                if key[0] == self.name and self._budget.fitting([key]):
                    await self._read(key, version)

    async def _read(self, key: BudgetKey, version: str) -> None:
        namespace, _, name = key[1].partition("/")
        try:
            current = await find_listed(self._client, self.resource, name, namespace=namespace)
            # Unless a newer event has arrived meanwhile.
            is_same = current is not None and self._budget_key(current) == key
            if current is not None and is_same and self._budget.fitting([key]) == {key: version}:
                self.change("MODIFIED", self._transform(current))
        except (ApiError, ConfigError):
            return  # tried again later
