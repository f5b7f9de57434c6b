"""The descheduler's process: caches, leader election, and, as leader, memory, records and strategies."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from controller_runtime import log, resources
from controller_runtime.auth import kubeconfig, weaknesses
from controller_runtime.cache.informer import Informer, unsynced
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.leaderelection.elector import LeaderElector
from controller_runtime.objects import Object
from controller_runtime.process import lifecycle
from controller_runtime.serving.server import HealthServer
from descheduler.config.options import Options
from descheduler.flags import PROGRAM
from descheduler.memory.store import Memory
from descheduler.moving.deletion_costs import DeletionCosts
from descheduler.moving.mover import Mover
from descheduler.moving.unfreeze import Releaser
from descheduler.strategies import registry
from descheduler.strategies.base import Context
from descheduler.view import pods
from descheduler.view.cluster import ClusterView

_RETRY = 2.0


class App:
    """The descheduler as one asyncio program."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = log.get_logger(component=PROGRAM)
        self._informers: list[Informer] = []

    async def run(self) -> None:
        """Take part in leader election and run the strategies while leading, until cancelled.

        Raises:
            ConfigError: the kubeconfig, a flag or the policy file is wrong.
        """
        options = self._options
        for warning in options.warnings:
            self._log.warning(warning)
        config = await kubeconfig.load(options.kubeconfig, server=options.master)
        weaknesses.warn(config, cluster="upper")
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                Client(config, qps=options.qps, burst=options.burst, user_agent=PROGRAM, cluster="upper")
            )
            view = self._view(client)
            if options.health_addr:
                await stack.enter_async_context(
                    HealthServer(options.health_addr, checks={"caches": lambda: unsynced(self._informers)})
                )
            await stack.enter_async_context(lifecycle.collecting_garbage())
            async with asyncio.TaskGroup() as group:
                for informer in self._informers:
                    group.create_task(informer.run(), name=informer.name)
                # A dry run takes no part in leader election, because it must not write a Lease. Its replicas
                # cannot conflict, because they write nothing.
                if options.leader_elect and not options.eviction.dry_run:
                    await self._elector(client, view).run()
                else:
                    await self._work(client, view)

    def _view(self, client: Client) -> ClusterView:
        nodes = Informer(client, resources.NODES, transform=_shrink_node, name="nodes")
        cached = Informer(
            client,
            resources.PODS,
            transform=pods.shrink,
            indexers=pods.INDEXERS,
            name="pods",
        )
        self._informers = [nodes, cached]
        return ClusterView(nodes=nodes, pods=cached, node_selector=self._options.node_selector)

    def _elector(self, client: Client, view: ClusterView) -> LeaderElector:
        return LeaderElector(
            client,
            namespace=self._options.freeze_namespace,
            name=PROGRAM,
            on_started=lambda: self._work(client, view),
            **self._options.lease,
        )

    async def _work(self, client: Client, view: ClusterView) -> None:
        """Load the memory and run the strategies until cancelled. Only the leader calls this."""
        options = self._options
        # Created for every term of leadership, because state of an earlier term may be stale.
        recorder = EventRecorder(client, component=PROGRAM, host=socket.gethostname())
        mover = Mover(
            client, view, recorder, options.eviction, options.freeze_namespace, options.freeze_period
        )
        context = Context(mover, Releaser(mover), options.interval)
        known = registry.strategies()
        strategies = [known[one.name](context, one.params, where=one.where) for one in options.strategies]
        for informer in self._informers:
            await informer.wait_synced()
        lifecycle.tune_gc()
        await _load(mover.memory)
        self._log.info(
            "descheduling",
            strategies=[strategy.name for strategy in strategies],
            virtual_nodes=[node.name for node in view.virtual_nodes()],
            dry_run=options.eviction.dry_run,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(recorder.run(), name="events")
            if not options.eviction.dry_run:
                group.create_task(mover.recreator.run(), name="recreation")
                group.create_task(mover.departures.run(), name="departures")
                group.create_task(DeletionCosts(client, view=view).run(), name="deletion costs")
                await mover.departures.loaded.wait()  # strategies must know the pods that are being moved
                group.create_task(mover.memory.run(), name="memory")
            for strategy in strategies:
                group.create_task(strategy.run(), name=strategy.name)


async def _load(memory: Memory) -> None:
    """Load the memory; retry until it succeeds, because no pod may be moved before earlier moves are known."""
    while True:
        try:
            await memory.load()
        except ApiError as error:
            log.get_logger(component=PROGRAM).warning("memory cannot be read yet", error=str(error))
            await asyncio.sleep(_RETRY)
        else:
            return


def _shrink_node(node: Object) -> Object:
    """Return a node with only allocatable and conditions in its status; its list of images is large and unused."""
    status = node.status or {}
    return node.with_fields(
        status={field: status[field] for field in ("allocatable", "conditions") if field in status}
    )
