"""One descheduler process on a fake cluster, for tests that kill it and start another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.events.recorder import EventRecorder
from descheduler.config.options import EvictionOptions
from descheduler.memory.store import Memory
from descheduler.moving.departures import Departures
from descheduler.moving.mover import Mover
from descheduler.moving.record_store import RecordStore
from descheduler.moving.recreation import Recreator
from descheduler.moving.unfreeze import Releaser
from descheduler.strategies.base import Context, Strategy
from descheduler.view import pods
from descheduler.view.cluster import ClusterView
from descheduler.view.departure import Departure
from descheduler.view.record import Record
from tests.unit.descheduler.bodies import now
from tests.unit.descheduler.cluster import Client, Cluster

FREEZE = 300.0


class Process:
    """All tasks of a leader, with the strategies that a test adds."""

    def __init__(
        self, cluster: Cluster, *, options: EvictionOptions | None = None, interval: float = 0
    ) -> None:
        options = options or EvictionOptions()
        self.client = Client(cluster)
        client: Any = self.client
        self.events: list[tuple[str, str, str]] = []
        nodes = Informer(client, resources.NODES)
        cache = Informer(
            client,
            resources.PODS,
            transform=pods.shrink,
            indexers=pods.INDEXERS,
        )
        self.view = ClusterView(nodes=nodes, pods=cache)
        self.recorder = EventRecorder(client, component="descheduler")
        self.recorder.event = self._record  # type: ignore[method-assign]
        self.memory = Memory(
            client, namespace="kube-system", freeze_period=FREEZE, limits=options.limits, now=now
        )
        store = RecordStore(client, Record, namespace="kube-system", recorder=self.recorder)
        self.departures = Departures(
            client,
            view=self.view,
            recorder=self.recorder,
            store=RecordStore(client, Departure, namespace="kube-system", recorder=self.recorder),
            wave=options.wave,
            now=now,
        )
        self.recreator = Recreator(client, pods=cache, recorder=self.recorder, store=store)
        self.mover = Mover(
            client,
            view=self.view,
            memory=self.memory,
            recreator=self.recreator,
            departures=self.departures,
            recorder=self.recorder,
            options=options,
            freeze_period=FREEZE,
            now=now,
        )
        releaser = Releaser(
            client,
            view=self.view,
            memory=self.memory,
            mover=self.mover,
            recreator=self.recreator,
            recorder=self.recorder,
            freeze_period=FREEZE,
            now=now,
        )
        self.context = Context(
            releaser=releaser,
            recorder=self.recorder,
            client=client,
            view=self.view,
            mover=self.mover,
            memory=self.memory,
            interval=interval,
            now=now,
        )
        self.strategies: list[Strategy] = []

    def add(self, kind: Callable[..., Strategy], params: Any) -> Any:
        """Add a strategy to run."""
        strategy = kind(self.context, params, where="params")
        self.strategies.append(strategy)
        return strategy

    def reasons(self) -> list[str]:
        """Return the reasons of all events so far."""
        return [reason for _, reason, _ in self.events]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.view.nodes.run())
            group.create_task(self.view.pods.run())
            await self.view.nodes.wait_synced()
            await self.view.pods.wait_synced()
            await self.memory.load()
            group.create_task(self.recreator.run())
            group.create_task(self.departures.run())
            await self.departures.loaded.wait()
            group.create_task(self.memory.run())
            for strategy in self.strategies:
                group.create_task(strategy.run())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Process]:
        """Run it in the block; leaving the block is a crash."""
        task = asyncio.create_task(self.run())
        try:
            await asyncio.sleep(0.01)
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def run_until(self, reaches: Callable[[str], bool], *, is_done: bool = False) -> None:
        """Run it, and crash before the first write for which ``reaches`` is true; with ``is_done``, after it."""
        reached = asyncio.Event()

        async def stop(what: str) -> None:
            if reaches(what):
                reached.set()
                await asyncio.Event().wait()

        if is_done:
            self.client.after = stop
        else:
            self.client.before = stop
        async with self.running():
            await asyncio.wait_for(reached.wait(), 60)

    def _record(self, involved: Any, type_: str, reason: str, message: str, **_: Any) -> None:
        self.events.append((type_, reason, message))
