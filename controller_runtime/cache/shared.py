"""Informers of one server that several users of a process share, so that each object is kept once.

Each user gets an informer of its own with ``SharedInformers.informer``. It has own handlers and indexes, and the
objects of the common cache. The server is followed while at least one user runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import structlog

from controller_runtime import consistency
from controller_runtime.cache.informer import BoundedInformer, BudgetKey, Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.store import Indexer, NamespaceBudget
from controller_runtime.util.event_loop import Slicer


class SharedInformers:
    """The common caches of one server.

    Objects of a namespace that exceeds its memory limit are stored as stubs (``NamespaceBudget``).
    """

    def __init__(self, client: Client, *, bytes_per_namespace: int = 0) -> None:
        """Create without any IO; ``bytes_per_namespace`` limits the memory of all kinds together, 0: no limit."""
        self._client = client
        self._budget: NamespaceBudget[BudgetKey] = NamespaceBudget(bytes_per_namespace)
        self._sources: dict[str, _Source] = {}

    def informer(
        self,
        client: Client,
        resource: Resource,
        *,
        indexers: Mapping[str, Indexer] | None = None,
        transform: Callable[[Object], Object] | None = None,
    ) -> Informer:
        """Return an informer of one user.

        Args:
            client: the user's client of the same server, with which it writes.
            resource: the resource; objects of all namespaces are followed.
            indexers: the indexes that the user needs. Users that give an index of the same name give equal functions.
            transform: as for ``Informer``. All users of a resource give equal functions.
        """
        source = self._sources.get(resource.qualified)
        if source is None:
            source = _Source(self._client, resource, self._budget, transform)
            self._sources[resource.qualified] = source
        return _SharedInformer(source, client, indexers or {})

    def stubs(self, namespace: str) -> int:
        """Return how many objects of a namespace are not kept, because the namespace exceeds its limit."""
        return self._budget.stubs(namespace)


class _Source:
    """The common cache of one resource. It is kept empty while it has no user."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        budget: NamespaceBudget[BudgetKey],
        transform: Callable[[Object], Object] | None,
    ) -> None:
        self._users = 0
        self._changing = asyncio.Lock()
        """Held while the informer starts or stops."""
        self._task: asyncio.Task[None] | None = None
        self.informer = BoundedInformer(client, resource, budget=budget, transform=transform)

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncIterator[asyncio.Task[None]]:
        """Follow the server during the block; yield the task, which ends only with an unexpected error."""
        async with self._changing:
            self._users += 1
            if self._task is None:
                self._task = asyncio.create_task(self.informer.run(), name=f"shared {self.informer.name}")
            task = self._task
        try:
            yield task
        finally:
            async with self._changing:
                self._users -= 1
                if not self._users:
                    self._task = None
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    await self.informer.clear()


class _SharedInformer(Informer):
    """One user's view of a common cache."""

    def __init__(self, source: _Source, client: Client, indexers: Mapping[str, Indexer]) -> None:
        common = source.informer
        self.resource, self.name, self.store = common.resource, common.name, common.store
        self._source = source
        self._client = client
        self._indexers = indexers
        self._reflector = common._reflector  # noqa: SLF001 - a view of the same informer
        self._registrations = ()
        self._synced = asyncio.Event()
        self._late: dict[str, None] | None = None
        """Keys of objects that were cached before ``run``, and are not delivered yet; None: not running."""
        self._log = structlog.get_logger(informer=self.name, cluster=client.cluster)

    async def run(self) -> None:
        """Deliver the common cache and its changes to this user's handlers until cancelled."""
        async with self._source.used() as task:
            self.store.add_indexers(self._indexers)
            try:
                with consistency.following(self._client, self.resource, self):
                    await self._follow(task)
            finally:
                self._synced.clear()
                self._late = None
                self.store.drop_indexers(self._indexers)

    async def _follow(self, task: asyncio.Task[None]) -> None:
        late = self._late = dict.fromkeys(self.store.keys())

        def added(new: Object, initial: bool) -> None:  # noqa: FBT001 - the informer's signature
            self._deliver("add", new, initial)

        def updated(old: Object, new: Object) -> None:
            if late.pop(new.key, "") is None:
                self._deliver("add", new, True)
            else:
                self._deliver("update", old, new)

        def deleted(final: Object) -> None:
            if late.pop(final.key, "") is not None:
                self._deliver("delete", final)

        common, slicer = self._source.informer, Slicer()
        with common.add_handler(on_add=added, on_update=updated, on_delete=deleted, with_cached=False):
            while late:
                key = next(iter(late))
                del late[key]
                if (cached := self.store.get(key)) is not None:
                    self._deliver("add", cached, True)
                await slicer.tick()
            synced = asyncio.ensure_future(common.wait_synced())
            try:
                await asyncio.wait({task, synced}, return_when=asyncio.FIRST_COMPLETED)
                self._synced.set()
                await asyncio.wait({task})
            finally:
                synced.cancel()
            await task

    def expect(self, created: Object) -> None:
        """Record an object in the common cache, as ``Informer.expect``."""
        self._source.informer.expect(created)

    def _delivered(self) -> list[Object]:
        if self._late is None:
            return []
        return [cached for cached in self.store.list() if cached.key not in self._late]

    def _deliver(self, kind: str, *arguments: Any) -> None:
        for registration in self._registrations:
            registration.deliver(kind, *arguments)
