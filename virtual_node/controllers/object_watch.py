"""Watches single upper objects by name, as a kubelet does, so that nothing else is ever read.

Reading whole namespaces of Secrets to follow three of them is a right we do not want to need. A list and watch
with ``metadata.name=…`` is allowed by the Node authoriser and by RBAC ``resourceNames`` alike. Each watch is
shared by all pods that name the object and ends when the last of them is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from controller_runtime import resources
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, Unavailable
from controller_runtime.informer import Informer
from controller_runtime.objects import Object
from controller_runtime.resources import Resource

KINDS: dict[str, Resource] = {"ConfigMap": resources.CONFIG_MAPS, "Secret": resources.SECRETS}

_SYNC_TIMEOUT = 10.0
"""Seconds a first look at an object may take before the pod that wants it is retried."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """One upper ConfigMap or Secret."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class ObjectWatches:
    """A set of single-object informers, started on first use."""

    def __init__(self, client: Client, *, on_change: Callable[[ObjectKey], None]) -> None:
        self._client = client
        self._on_change = on_change
        self._informers: dict[ObjectKey, tuple[Informer, asyncio.Task[None]]] = {}
        self._faults: asyncio.Queue[BaseException] = asyncio.Queue()

    async def run(self) -> None:
        """Keep the watches until cancelled, then end every one.

        Raises:
            Exception: what one of them ended with by itself. It is a fault of ours, and what it watched would go
                stale unseen: only a fresh start mends that.
        """
        try:
            raise await self._faults.get()
        finally:
            tasks = [task for _, task in self._informers.values()]
            self._informers.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def get(self, key: ObjectKey) -> Object | None:
        """The object as the upper cluster has it now; starts watching it. None: it does not exist.

        Raises:
            ApiError: the upper cluster does not let us read it, or does not answer.
        """
        entry = self._informers.get(key)
        if entry is None:
            entry = self._informers[key] = self._start(key)
        informer = entry[0]
        # One that has failed already goes on trying; the pod that wants it does not wait for that.
        patience = _SYNC_TIMEOUT if informer.last_error is None else 0
        if not informer.has_synced and not await informer.wait_synced(patience):
            error = informer.last_error
            raise error if isinstance(error, ApiError) else Unavailable(f"{key} cannot be read yet: {error}")
        return informer.store.get(f"{key.namespace}/{key.name}")

    def peek(self, key: ObjectKey) -> Object | None:
        """The object as last seen, without any waiting."""
        entry = self._informers.get(key)
        return entry[0].store.get(f"{key.namespace}/{key.name}") if entry is not None else None

    def synced(self, key: ObjectKey) -> bool:
        """Whether ``peek`` speaks for the upper cluster."""
        entry = self._informers.get(key)
        return entry is not None and entry[0].has_synced

    def stop(self, key: ObjectKey) -> None:
        """Nobody needs the object any more."""
        entry = self._informers.pop(key, None)
        if entry is not None:
            entry[1].cancel()

    def __len__(self) -> int:
        return len(self._informers)

    def _start(self, key: ObjectKey) -> tuple[Informer, asyncio.Task[None]]:
        informer = Informer(
            self._client,
            KINDS[key.kind],
            namespace=key.namespace,
            field_selector=f"metadata.name={key.name}",
            name=f"single-{KINDS[key.kind].plural}",
            is_minor=True,
        )
        informer.add_handler(
            on_add=lambda _object, _initial: self._on_change(key),
            on_update=lambda _old, _new: self._on_change(key),
            on_delete=lambda _object: self._on_change(key),
        )
        task = asyncio.create_task(informer.run(), name=f"watch {key}")
        task.add_done_callback(self._ended)
        return informer, task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._faults.put_nowait(task.exception() or RuntimeError(f"{task.get_name()} ended"))
