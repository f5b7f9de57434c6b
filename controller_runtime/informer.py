"""A cache of one resource that follows the server, and tells its handlers what changed.

List, then watch from the list's resourceVersion; a watch that ends is resumed from the last version seen, without
a list. 410 Gone means that history is missing: list again and tell the handlers the difference, deletions
included. The cache is updated before the handlers of a change are called.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from prometheus_client import Counter, Gauge

from controller_runtime import backoff
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, ConfigError, ConnectionFailed, Expired
from controller_runtime.objects import Object, WatchEvent
from controller_runtime.resources import Resource
from controller_runtime.store import Indexer, Store

_RESTARTS = Counter(
    "virtual_node_watch_restarts_total", "Watches started again, by why.", ["cluster", "resource", "reason"]
)
_OBJECTS = Gauge("virtual_node_cached_objects", "Objects in informer caches.", ["cluster", "resource"])
_HANDLER_ERRORS = Counter(
    "virtual_node_handler_errors_total", "Exceptions that event handlers let out.", ["cluster", "resource"]
)

_BACKOFF_BASE = 0.8
_BACKOFF_MAXIMUM = 30.0
_QUIET = 120.0
"""Seconds without trouble after which the back-off starts anew."""
_WATCH_SECONDS = (300.0, 600.0)
_SILENCE_GRACE = 30.0
_SHORT = 1.0
"""Seconds; a watch that ends sooner without a word is a failure, as in client-go, or it would be repeated in a loop."""
_EXPIRED = "expired"
_SLICE = 0.005
"""Seconds of handler work after which other tasks get a turn."""

OnAdd = Callable[[Object, bool], Awaitable[None] | None]
OnUpdate = Callable[[Object, Object], Awaitable[None] | None]
OnDelete = Callable[[Object], Awaitable[None] | None]


class Registration:
    """One set of handlers; ``remove`` detaches it."""

    def __init__(
        self,
        informer: Informer,
        on_add: OnAdd | None,
        on_update: OnUpdate | None,
        on_delete: OnDelete | None,
    ) -> None:
        self._informer = informer
        self._handlers: dict[str, Callable[..., Any] | None] = {
            "add": on_add,
            "update": on_update,
            "delete": on_delete,
        }
        self._buffer: asyncio.Queue[tuple[Callable[..., Any], tuple[Any, ...]]] | None = None
        if any(inspect.iscoroutinefunction(handler) for handler in self._handlers.values()):
            self._buffer = asyncio.Queue()
        self._removed = False
        self.has_synced = False
        """Whether every object of the first list has been delivered."""

    def remove(self) -> None:
        """Deliver nothing more, what is buffered included; a call under way is finished."""
        self._removed = True
        self._informer._detach(self)  # noqa: SLF001 - two halves of one thing
        if self._buffer is not None:
            self._buffer.put_nowait((self._nothing, ()))  # wakes the pump, which ends

    def deliver(self, kind: str, *arguments: Any) -> None:
        """Call a handler now, or queue the call where handlers are coroutines."""
        handler = self._handlers[kind]
        if handler is None or self._removed:
            return
        if self._buffer is not None:
            self._buffer.put_nowait((handler, arguments))
            return
        try:
            handler(*arguments)
        except Exception:  # noqa: BLE001 - a handler's fault ends with it
            self._informer.handler_failed()

    def mark_synced(self) -> None:
        """The first list has been handed over up to here."""
        if self._buffer is None:
            self.has_synced = True
        else:
            self._buffer.put_nowait((self._note_synced, ()))

    async def pump(self) -> None:
        """Call buffered handlers one after the other, so that a slow one delays only itself."""
        if self._buffer is None:
            return
        while True:
            handler, arguments = await self._buffer.get()
            if self._removed:
                return
            try:
                outcome = handler(*arguments)
                if inspect.isawaitable(outcome):
                    await outcome
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Not we were cancelled but something that the handler awaited.
                self._informer.handler_failed()
            except Exception:  # noqa: BLE001 - a handler's fault ends with it
                self._informer.handler_failed()

    def _note_synced(self) -> None:
        self.has_synced = True

    def _nothing(self) -> None:
        pass


class Informer:
    """Keeps ``store`` equal to the server's collection and calls handlers on every change."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        indexers: Mapping[str, Indexer] | None = None,
        transform: Callable[[Object], Object] | None = None,
        resync_period: float = 0,
        page_size: int = 500,
        name: str = "",
    ) -> None:
        """Set up; ``run`` starts it.

        Args:
            client: the cluster.
            resource: what to follow.
            namespace: only there; None: everywhere.
            label_selector: as kubectl's ``-l``.
            field_selector: as kubectl's ``--field-selector``.
            indexers: by index name, the values an object is found under.
            transform: called on every object before it is stored; drops what nobody needs.
            resync_period: seconds between two re-deliveries of the whole cache to the handlers; 0: never.
            page_size: objects per page of a list; 0: all at once.
            name: in logs and metrics; the resource by default.
        """
        self.resource = resource
        self.store = Store(indexers)
        self.name = name or resource.qualified
        self.last_error: Exception | None = None
        self._client = client
        self._selection: dict[str, Any] = {
            "namespace": namespace,
            "label_selector": label_selector,
            "field_selector": field_selector,
        }
        self._transform = transform
        self._resync_period = max(1.0, resync_period) if resync_period else 0.0
        self._page_size = page_size
        self._registrations: tuple[Registration, ...] = ()
        """Replaced, never changed: handlers come and go while it is walked."""
        self._synced = asyncio.Event()
        self._resource_version = ""
        self._contact: float | None = None
        self._group: asyncio.TaskGroup | None = None
        self._log = structlog.get_logger(informer=self.name, cluster=client.cluster)

    # --- for users --------------------------------------------------------------------------------

    def add_handler(
        self,
        *,
        on_add: OnAdd | None = None,
        on_update: OnUpdate | None = None,
        on_delete: OnDelete | None = None,
    ) -> Registration:
        """Be told of changes; what is cached already comes as adds.

        Plain functions are called at once and must not block; an exception is logged and counted. Coroutine
        functions have a buffer and a task of their own.

        Args:
            on_add: called with the object and whether it is part of the first list.
            on_update: called with the old and the new state.
            on_delete: called with the last known state.
        """
        registration = Registration(self, on_add, on_update, on_delete)
        self._registrations = (*self._registrations, registration)
        if self._group is not None:
            self._group.create_task(registration.pump(), name=f"{self.name} handler")
        for cached in self.store.list():
            registration.deliver("add", cached, True)
        if self.has_synced:
            registration.mark_synced()
        return registration

    @property
    def has_synced(self) -> bool:
        """Whether the first list has been stored completely."""
        return self._synced.is_set()

    async def wait_synced(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - answers instead of raising
        """Wait for the first list; False when it did not come within ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._synced.wait()
        except TimeoutError:
            return False
        return True

    @property
    def age(self) -> float:
        """Seconds since the server was last heard; infinite before the first time."""
        if self._contact is None:
            return float("inf")
        return asyncio.get_running_loop().time() - self._contact

    async def run(self) -> None:
        """Follow the server until cancelled; trouble is waited out with back-off."""
        gauge = _OBJECTS.labels(self._client.cluster, self.name)
        # The metric lives as long as the process; it is not to keep the cache of a cluster that is followed no longer.
        found = weakref.ref(self.store)
        gauge.set_function(lambda: 0 if (store := found()) is None else len(store))
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for registration in self._registrations:
                    group.create_task(registration.pump(), name=f"{self.name} handler")
                if self._resync_period:
                    group.create_task(self._resync(), name=f"{self.name} resync")
                await self._follow()
            finally:
                self._group = None

    def handler_failed(self) -> None:
        """A handler let an exception out; it is the handler's fault and ends with it."""
        _HANDLER_ERRORS.labels(self._client.cluster, self.name).inc()
        self._log.exception("event handler failed")

    # --- list and watch ---------------------------------------------------------------------------

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        last_failure = float("-inf")
        while True:
            try:
                if not self._resource_version:
                    await self._list()
                await self._watch()
                continue
            except (ApiError, ConfigError) as error:
                self.last_error = error
                reason = _reason(error)
            is_quiet = loop.time() - last_failure > _QUIET
            last_failure = loop.time()
            _RESTARTS.labels(self._client.cluster, self.name, reason).inc()
            if is_quiet:
                failures = 0
            if reason == _EXPIRED:
                # History is missing between what we know and what the server has: read everything, at once the
                # first time. A server whose versions always expire must not be listed in a loop.
                self._resource_version = ""
                if is_quiet:
                    continue
            failures += 1
            delay = backoff.exponential(failures - 1, base=_BACKOFF_BASE, maximum=_BACKOFF_MAXIMUM)
            if failures == 1 and reason == "disconnected" and self._resource_version:
                delay = (
                    0.05  # a restarted server is back at once; only persistent trouble is worth waiting for
                )
            delay *= 1 + random.random()  # noqa: S311 - jitter
            level = self._log.warning if failures in {3, 10} else self._log.debug
            level("watch failed", error=str(self.last_error), retry_in=round(delay, 1), attempt=failures)
            await asyncio.sleep(delay)

    async def _list(self) -> None:
        listed = await self._client.list(self.resource, limit=self._page_size, **self._selection)
        self._heard()
        initial = not self.has_synced
        clock = _Slicer()
        gone = self.store.keys()
        for item in listed.items:
            gone.discard(item.key)
            self._store(item, initial=initial)
            await clock.tick()
        for key in gone:
            self._remove(key, None)
            await clock.tick()
        self._resource_version = listed.resource_version
        self.last_error = None
        if initial:
            self._synced.set()
            for registration in self._registrations:
                registration.mark_synced()

    async def _watch(self) -> None:
        seconds = random.uniform(*_WATCH_SECONDS)  # noqa: S311 - spreads reconnects
        batches = self._client.watch_batches(
            self.resource,
            resource_version=self._resource_version,
            timeout_seconds=seconds,
            read_timeout=seconds + _SILENCE_GRACE,
            **self._selection,
        )
        clock = _Slicer()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        is_empty = True
        async with contextlib.aclosing(batches):
            async for batch in batches:
                is_empty = False
                self._heard()
                self.last_error = None
                for event in batch:
                    self._apply(event)
                    await clock.tick()
        if is_empty and loop.time() - begun < _SHORT:
            raise ConnectionFailed("the watch ended as soon as it began")

    def _apply(self, event: WatchEvent) -> None:
        changed = event.object
        if event.type == "DELETED":
            self._remove(changed.key, changed)
        elif event.type != "BOOKMARK":
            self._store(changed, initial=False)
        # Last, so that a failure above is met by reading the event again.
        self._resource_version = changed.resource_version

    def _store(self, new: Object, *, initial: bool) -> None:
        if self._transform is not None:
            new = self._transform(new)
        key = new.key
        old = self.store.get(key)
        if old is not None and old.uid != new.uid:
            # Another object took the name inside a gap: for whoever keys by uid these are two events.
            self._remove(key, None)
            old = None
        if old is not None and old.resource_version == new.resource_version:
            return
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
        if final is not None and final.uid == old.uid and self._transform is not None:
            final = self._transform(final)
        elif final is None or final.uid != old.uid:
            final = old
        self.store.remove(key)
        for registration in self._registrations:
            registration.deliver("delete", final)

    async def _resync(self) -> None:
        """Deliver the whole cache again now and then; asks the server nothing."""
        while True:
            await asyncio.sleep(self._resync_period)
            clock = _Slicer()
            for cached in self.store.list():
                if self.store.get(cached.key) is cached:
                    for registration in self._registrations:
                        registration.deliver("update", cached, cached)
                await clock.tick()

    def _heard(self) -> None:
        self._contact = asyncio.get_running_loop().time()

    def _detach(self, registration: Registration) -> None:
        self._registrations = tuple(other for other in self._registrations if other is not registration)

    def __repr__(self) -> str:
        return f"<Informer {self.name} objects={len(self.store)} synced={self.has_synced} rv={self._resource_version}>"


def _reason(error: Exception) -> str:
    """Why a watch is started again, in metrics; "expired": what we know is not what the server goes on from."""
    if isinstance(error, Expired) or _is_from_the_future(error):
        return _EXPIRED
    return "disconnected" if isinstance(error, ConnectionFailed) else type(error).__name__


def _is_from_the_future(error: Exception) -> bool:
    """Whether the server has yet to reach our version, as one does that was restored from a backup."""
    details = error.status.get("details") if isinstance(error, ApiError) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes
    )


class _Slicer:
    """Lets the loop breathe during long batches."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    async def tick(self) -> None:
        if self._loop.time() - self._since > _SLICE:
            await asyncio.sleep(0)
            self._since = self._loop.time()
