"""An informer in which the objects of one namespace use limited memory.

Objects beyond the limit are stubs (``namespace_budget``). They are read again when there is room for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from controller_runtime.cache.informer import Informer
from controller_runtime.cache.namespace_budget import NamespaceBudget
from controller_runtime.client.client import Client, find_listed
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.util.responsive import Slicer

_AGAIN = 30.0
"""Seconds between two checks whether stubs fit into the budgets of their namespaces now."""


BudgetKey = tuple[str, str, str]
"""Name of the informer, and key and uid of an object. The uid, because a replaced object is forgotten after the new one is counted."""


class BoundedInformer(Informer):
    """Keeps an object as a stub while its namespace has no room for it."""

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
