"""The annotator's process: the view of the lower clusters, leader election, and the writer while this process leads."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import msgspec

from controller_runtime.client.client import Client
from controller_runtime.process import lifecycle
from controller_runtime.serving.health import Check
from controller_runtime.serving.server import HealthServer
from multi_scheduler import connections
from multi_scheduler.annotator.program import PROGRAM, AnnotatorSettings
from multi_scheduler.annotator.writer import Writer
from multi_scheduler.bound_pods import bound_pods
from multi_scheduler.connections import LowerClients
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.process import configuration
from multi_scheduler.shared import Shared


async def run(options: AnnotatorSettings) -> None:
    """Take part in leader election and annotate nodes while leading, until cancelled.

    Raises:
        ConfigError: a setting or file is wrong and the user must correct it.
    """
    await configuration.run(
        options, PROGRAM.name, lambda given: connections.run(given, PROGRAM.name, partial(_work, given))
    )


async def _work(options: AnnotatorSettings, upper: Client, lower: LowerClients) -> None:
    # Only agents use the usage of real upper nodes and the bound pods, and the annotator has no right to read them.
    config = msgspec.structs.replace(options.config, upper_usage=None)
    shared = Shared(config, upper, bound_pods(upper))
    directory = NodeDirectory(upper, config, effect="it gets no annotations")
    lower.inform(directory)
    lower.inform(shared)

    async def write() -> None:
        # Created for every term of leadership, because another process may have written since the last term.
        await Writer(
            upper,
            shared,
            directory,
            lower_nodes=options.lower_nodes,
            refresh=options.refresh,
            threshold=options.threshold / 100,
        ).run(options.interval)

    checks: dict[str, Check] = {
        "nodes": directory.unread,
        # One readable lower cluster is enough, as others may be unreachable.
        "view": lambda: (
            "no lower cluster has been read yet"
            if all(cluster.feed.trouble() for cluster in shared.state.clusters.values())
            else None
        ),
    }
    async with contextlib.AsyncExitStack() as stack:
        if options.health_addr:
            await stack.enter_async_context(HealthServer(options.health_addr, checks=checks))
        await stack.enter_async_context(lifecycle.collecting_garbage())
        async with asyncio.TaskGroup() as group:
            group.create_task(directory.run(), name="nodes")
            group.create_task(shared.state.run_lower(measures=True), name="view")
            await options.election.lead(upper, write, name=PROGRAM.name, namespace=options.namespace)
