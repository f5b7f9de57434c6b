"""The controller's process: caches, leader election, and the controller while this process leads."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import UTC, datetime

from aiohttp import web

from controller_runtime import leading, log
from controller_runtime.client.client import Client
from controller_runtime.events import EventRecorder
from controller_runtime.process.program import version
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller
from controller_runtime.workqueue.queue import WorkQueue
from swarm.compatibility import LegacySettings
from swarm.controller.caches import Caches
from swarm.controller.reconciler import Reconciler
from swarm.program import PROGRAM, SwarmSettings

_log = log.get_logger(component=PROGRAM.name)
_WORKERS = 4
_STARTED = datetime.now(UTC).isoformat(timespec="seconds")
_RETRY_FIRST, _RETRY_LAST = 0.02, 30.0


async def run(options: SwarmSettings, legacy: LegacySettings | None = None) -> None:
    """Take part in leader election, and run the controller while leading, until cancelled.

    ``legacy`` is the Swarm to create for k8s-swarm's command line.

    Raises:
        ConfigError: a setting is wrong and the user must correct it.
    """

    def prepare(client: Client) -> leading.Prepared:
        caches = Caches(client, options.namespace or None)
        return caches.all(), lambda synced: work(options, client, caches, synced, legacy)

    routes = {"/internal/health": _internal_health}
    await leading.run(PROGRAM.name, options, prepare, namespace=options.lease_namespace, routes=routes)


async def run_legacy(options: LegacySettings) -> None:
    """Run for k8s-swarm's command line, as ``run``."""
    await run(options.controller, options)


async def work(
    options: SwarmSettings,
    client: Client,
    caches: Caches,
    synced: leading.Synced,
    legacy: LegacySettings | None = None,
) -> None:
    """Run the leader's tasks until cancelled."""
    recorder = EventRecorder(client, component=PROGRAM.name, host=socket.gethostname())
    # Writes often conflict with acknowledgements, so first retries are fast and the longest delay is short.
    queue = WorkQueue[str](
        "swarms",
        rate_limiter=ExponentialBackoff(base=_RETRY_FIRST, maximum=_RETRY_LAST),
        flow=lambda key: key.partition("/")[0],
        workers=_WORKERS,
    )
    reconciler = Reconciler(
        client, caches, recorder, queue.add, options.gone_after, poll_cidrs=options.networks
    )
    controller = Controller("swarms", reconciler.reconcile, workers=_WORKERS, queue=queue)
    if legacy is not None:
        await legacy.ensure(client)
    await synced()
    _log.info("working", swarms=len(caches.swarms.store))
    with caches.connect(queue, reconciler.liveness):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(recorder.run(), name="events")
                group.create_task(reconciler.sources.run(), name="job lists")
                group.create_task(controller.run(), name="swarms")
        finally:
            await reconciler.polls.close()


async def _internal_health(_: web.Request) -> web.Response:
    """Return start time and version, as ``/internal/health`` of k8s-swarm's controller does."""
    body = {"date": _STARTED, "version": version() or ""}
    return web.json_response(body, dumps=lambda value: json.dumps(value) + "\n")
