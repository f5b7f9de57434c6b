"""One descheduler process on a fake cluster, for tests that kill it and start another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.events import EventRecorder
from descheduler import pods
from descheduler.cluster import ClusterView
from descheduler.config import EvictionOptions
from descheduler.moving.mover import Mover
from descheduler.strategies.base import Context, Strategy
from tests.background import working
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
        self.mover = Mover(client, self.view, self.recorder, options, "kube-system", FREEZE, now)
        self.context = Context(self.mover, interval)
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
            await self.mover.memory.load()
            group.create_task(self.mover.recreator.run())
            group.create_task(self.mover.departures.run())
            group.create_task(self.mover.evictor.run())
            await self.mover.departures.loaded.wait()
            group.create_task(self.mover.memory.run())
            for strategy in self.strategies:
                group.create_task(strategy.run())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Process]:
        """Run it in the block; leaving the block is a crash."""
        async with working(self.run()):
            await asyncio.sleep(0.01)
            yield self

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
