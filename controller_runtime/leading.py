"""A controller's process: client of the upper cluster, caches, health, and work that only the leader does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from aiohttp.typedefs import Handler

from controller_runtime.cache.informer import Informer, unsynced
from controller_runtime.client.client import Client, connected
from controller_runtime.leaderelection import ControllerSettings
from controller_runtime.process import lifecycle
from controller_runtime.serving.server import HealthServer

Synced = Callable[[], Awaitable[None]]
"""Returns when the caches have been read."""
Prepared = tuple[Sequence[Informer], Callable[[Synced], Awaitable[None]]]
"""The caches, and the work of each term as leader. It does what can fail without the caches before it calls Synced."""


async def run(
    program: str,
    options: ControllerSettings,
    prepare: Callable[[Client], Prepared],
    *,
    namespace: str,
    routes: Mapping[str, Handler] = MappingProxyType({}),
) -> None:
    """Connect to the upper cluster, serve health, run the caches and, as leader, the work, until cancelled.

    Args:
        program: name of the program and of the Lease.
        options: the controller's options.
        prepare: creates the caches and the work.
        namespace: namespace of the Lease.
        routes: path → handler of additional GET requests on the health address.

    Raises:
        ConfigError: the kubeconfig is wrong.
        ExceptionGroup: contains the errors of the caches and of the work, such as a ConfigError.
    """
    upper = connected(
        options.kubeconfig,
        server=options.master,
        cluster="upper",
        user_agent=program,
        qps=options.qps,
        burst=options.burst,
    )
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(upper)
        informers, work = prepare(client)

        async def synced() -> None:
            for informer in informers:
                await informer.wait_synced()
            lifecycle.tune_gc()

        if options.health_addr:
            server = HealthServer(options.health_addr, checks={"caches": lambda: unsynced(informers)})
            for path, handler in routes.items():
                server.add_route("GET", path, handler)
            await stack.enter_async_context(server)
        await stack.enter_async_context(lifecycle.collecting_garbage())
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for informer in informers:
            group.create_task(informer.run(), name=informer.name)
        await options.election.lead(client, partial(work, synced), name=program, namespace=namespace)
