"""The controller's process: caches, leader election, and the controller while this process leads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from datetime import UTC, datetime

from aiohttp import web

from controller_runtime import log
from controller_runtime.auth import kubeconfig, weaknesses
from controller_runtime.cache.informer import Informer, unsynced
from controller_runtime.client.client import Client
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.leaderelection.elector import LeaderElector
from controller_runtime.process import lifecycle, version
from controller_runtime.serving.server import HealthServer
from controller_runtime.util.backoff import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller
from controller_runtime.workqueue.queue import WorkQueue
from swarm.controller.caches import Caches
from swarm.controller.reconciler import Reconciler
from swarm.flags import PROGRAM, Options

_WORKERS = 4
_STARTED = datetime.now(UTC).isoformat(timespec="seconds")
_RETRY_FIRST, _RETRY_LAST = 0.02, 30.0


class App:
    """Runs the controller until cancelled."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = log.get_logger(component=PROGRAM)
        self._informers: list[Informer] = []

    async def run(self) -> None:
        """Take part in leader election, and run the controller while leading.

        Raises:
            ConfigError: a setting is wrong and the user must correct it.
        """
        options = self._options
        config = await kubeconfig.load(options.kubeconfig, server=options.master)
        weaknesses.warn(config, cluster="upper")
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                Client(config, qps=options.qps, burst=options.burst, user_agent=PROGRAM, cluster="upper")
            )
            caches = Caches(client, options.namespace or None)
            self._informers = caches.all()
            if options.health_addr:
                server = HealthServer(
                    options.health_addr, checks={"caches": lambda: unsynced(self._informers)}
                )
                server.add_route("GET", "/internal/health", _internal_health)
                await stack.enter_async_context(server)
            await stack.enter_async_context(lifecycle.collecting_garbage())
            async with asyncio.TaskGroup() as group:
                for informer in self._informers:
                    group.create_task(informer.run(), name=informer.name)
                if options.leader_elect:
                    await self._elector(client, caches).run()
                else:
                    await self._work(client, caches)

    def _elector(self, client: Client, caches: Caches) -> LeaderElector:
        return LeaderElector(
            client,
            namespace=self._options.lease_namespace,
            name=PROGRAM,
            on_started=lambda: self._work(client, caches),
            **self._options.lease,
        )

    async def _work(self, client: Client, caches: Caches) -> None:
        """Run the leader's tasks until cancelled."""
        recorder = EventRecorder(client, component=PROGRAM, host=socket.gethostname())
        # Writes often conflict with acknowledgements, so first retries are fast and the longest delay is short.
        queue = WorkQueue[str](
            "swarms", rate_limiter=ExponentialBackoff(base=_RETRY_FIRST, maximum=_RETRY_LAST)
        )
        reconciler = Reconciler(client, caches, recorder, queue.add, self._options.gone_after)
        controller = Controller("swarms", reconciler.reconcile, workers=_WORKERS, queue=queue)
        if self._options.legacy is not None:
            await self._options.legacy.ensure(client)
        for informer in self._informers:
            await informer.wait_synced()
        lifecycle.tune_gc()
        self._log.info("working", swarms=len(caches.swarms.store))
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
    body = {"date": _STARTED, "version": version.version() or ""}
    return web.json_response(body, dumps=lambda value: json.dumps(value) + "\n")
