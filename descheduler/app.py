"""The descheduler's process: caches, leader election, and, as leader, memory, records and strategies."""

from __future__ import annotations

import asyncio
import socket

from controller_runtime import leading, log, resources
from controller_runtime.cache.informer import BoundedInformer, Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.store import NamespaceBudget
from descheduler import pods
from descheduler.cluster import ClusterView
from descheduler.memory import Memory
from descheduler.moving.deletion_costs import DeletionCosts
from descheduler.moving.mover import Mover
from descheduler.program import PROGRAM, DeschedulerSettings
from descheduler.strategies import registry
from descheduler.strategies.base import Context

_log = log.get_logger(component=PROGRAM.name)
_RETRY = 2.0


async def run(options: DeschedulerSettings) -> None:
    """Take part in leader election and run the strategies while leading, until cancelled.

    Raises:
        ConfigError: the kubeconfig, a flag or the policy file is wrong.
    """
    for warning in options.warnings:
        _log.warning(warning)

    def prepare(client: Client) -> leading.Prepared:
        nodes = Informer(client, resources.NODES, transform=_shrink_node, name="nodes")
        cached = BoundedInformer(
            client,
            resources.PODS,
            budget=NamespaceBudget(pods.BYTES_PER_NAMESPACE, free=pods.FREE, shrink=pods.stub),
            transform=pods.shrink,
            indexers=pods.INDEXERS,
            name="pods",
        )
        view = ClusterView(nodes=nodes, pods=cached, node_selector=options.node_selector)
        return (nodes, cached), lambda synced: _work(options, client, view, synced)

    await leading.run(PROGRAM.name, options, prepare, namespace=options.freeze_namespace)


async def _work(
    options: DeschedulerSettings, client: Client, view: ClusterView, synced: leading.Synced
) -> None:
    """Load the memory of moves and run the strategies until cancelled. Only the leader calls this."""
    # Created for every term of leadership, because state of an earlier term may be stale.
    recorder = EventRecorder(client, component=PROGRAM.name, host=socket.gethostname())
    mover = Mover(client, view, recorder, options.eviction, options.freeze_namespace, options.freeze_period)
    context = Context(mover, options.interval)
    known = registry.strategies()
    strategies = [
        known[strategy.name](context, strategy.params, where=strategy.where)
        for strategy in options.strategies
    ]
    await synced()
    await _load(mover.memory)
    _log.info(
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
            group.create_task(mover.evictor.run(), name="eviction requests")
            group.create_task(DeletionCosts(client, view=view).run(), name="deletion costs")
            await mover.departures.loaded.wait()  # strategies must know the pods that are being moved
            group.create_task(mover.memory.run(), name="memory")
        for strategy in strategies:
            group.create_task(strategy.run(), name=strategy.name)


async def _load(memory: Memory) -> None:
    """Load the memory of moves; retry until it succeeds, because no pod may be moved before earlier moves are known."""
    while True:
        try:
            await memory.load()
        except ApiError as error:
            _log.warning("memory cannot be read yet", error=str(error))
            await asyncio.sleep(_RETRY)
        else:
            return


def _shrink_node(node: Object) -> Object:
    """Return a node with only allocatable and conditions in its status; its list of images is large and unused."""
    return node.with_fields(status=pods.pick(node.status or {}, ("allocatable", "conditions")))
