"""The controller's process: caches, leader election, and the controller while this process leads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import web

from controller_runtime import log, resources
from controller_runtime.auth import kubeconfig, weaknesses
from controller_runtime.cache.handlers import Registration
from controller_runtime.cache.informer import Informer, unsynced
from controller_runtime.client.client import Client
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.leaderelection.elector import LeaderElector
from controller_runtime.objects import Object
from controller_runtime.process import lifecycle, version
from controller_runtime.resources import SWARMS
from controller_runtime.serving.server import HealthServer
from controller_runtime.util.backoff import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller
from controller_runtime.workqueue.queue import WorkQueue
from swarm.controller import worker_pods
from swarm.controller.delivery import Delivery
from swarm.controller.liveness import Liveness
from swarm.controller.owned_objects import INDEX_SWARM, LABEL_SWARM, by_swarm, shrink_config_map
from swarm.controller.polls import Polls
from swarm.controller.reconciler import Reconciler
from swarm.controller.reports import Reports
from swarm.controller.restarts import Restarts
from swarm.controller.sources import Sources
from swarm.controller.worker_pods import INDEX_NAMESPACE, WorkerPods, shrink_pod, shrink_workload, view
from swarm.flags import PROGRAM, Options

_WORKERS = 4
_STARTED = datetime.now(UTC).isoformat(timespec="seconds")
_BURST = 0.05
"""Seconds from a ConfigMap or Lease change to the reconcile."""
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
            caches = _Caches.follow(client, options.namespace or None)
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

    def _elector(self, client: Client, caches: _Caches) -> LeaderElector:
        return LeaderElector(
            client,
            namespace=self._options.lease_namespace,
            name=PROGRAM,
            on_started=lambda: self._work(client, caches),
            **self._options.lease,
        )

    async def _work(self, client: Client, caches: _Caches) -> None:
        """Run the leader's tasks until cancelled."""
        recorder = EventRecorder(client, component=PROGRAM, host=socket.gethostname())
        # Writes often conflict with acknowledgements, so first retries are fast and the longest delay is short.
        queue = WorkQueue[str](
            "swarms", rate_limiter=ExponentialBackoff(base=_RETRY_FIRST, maximum=_RETRY_LAST)
        )
        delivery = Delivery(client, config_maps=caches.config_maps, leases=caches.leases)
        polls = Polls(on_change=queue.add, node_addresses=caches.node_addresses)
        reports = Reports(delivery, polls)
        liveness = Liveness(
            client, nodes=caches.nodes, leases=caches.heartbeats, settle=self._options.gone_after
        )
        pods = WorkerPods(
            pods=caches.pods, stateful_sets=caches.stateful_sets, deployments=caches.deployments
        )
        sources = Sources(client, on_change=queue.add)
        reconciler = Reconciler(
            client,
            swarms=caches.swarms,
            pods=pods,
            sources=sources,
            liveness=liveness,
            delivery=delivery,
            reports=reports,
            restarts=Restarts(client, recorder=recorder),
            recorder=recorder,
        )
        controller = Controller("swarms", reconciler.reconcile, workers=_WORKERS, queue=queue)
        if self._options.legacy is not None:
            await self._options.legacy.ensure(client)
        for informer in self._informers:
            await informer.wait_synced()
        lifecycle.tune_gc()
        registrations = caches.connect(queue, liveness)
        self._log.info("working", swarms=len(caches.swarms.store))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(recorder.run(), name="events")
                group.create_task(sources.run(), name="job lists")
                group.create_task(controller.run(), name="swarms")
        finally:
            for registration in registrations:
                registration.remove()
            await polls.close()


@dataclass(frozen=True, slots=True)
class _Caches:
    swarms: Informer
    pods: Informer
    stateful_sets: Informer
    deployments: Informer
    config_maps: Informer
    leases: Informer
    nodes: Informer
    heartbeats: Informer

    @classmethod
    def follow(cls, client: Client, namespace: str | None) -> _Caches:
        return cls(
            swarms=Informer(client, SWARMS, namespace=namespace, indexers=_NAMESPACE, name="swarms"),
            pods=Informer(
                client,
                resources.PODS,
                namespace=namespace,
                transform=shrink_pod,
                indexers=_NAMESPACE,
                name="pods",
            ),
            stateful_sets=Informer(
                client, resources.STATEFUL_SETS, namespace=namespace, transform=shrink_workload
            ),
            deployments=Informer(
                client, resources.DEPLOYMENTS, namespace=namespace, transform=shrink_workload
            ),
            config_maps=Informer(
                client,
                resources.CONFIG_MAPS,
                namespace=namespace,
                label_selector=LABEL_SWARM,
                transform=shrink_config_map,
                indexers=_SWARM,
                name="shares",
            ),
            leases=Informer(
                client,
                resources.LEASES,
                namespace=namespace,
                label_selector=LABEL_SWARM,
                indexers=_SWARM,
                name="acknowledgements",
            ),
            nodes=Informer(client, resources.NODES, transform=_shrink_node, name="nodes"),
            heartbeats=Informer(client, resources.LEASES, namespace="kube-node-lease", name="heartbeats"),
        )

    def all(self) -> list[Informer]:
        return [getattr(self, name) for name in self.__slots__]

    def node_addresses(self, name: str) -> list[str]:
        """Return the addresses of a node."""
        node = self.nodes.store.get(name)
        return [one["address"] for one in (node.status or {}).get("addresses") or ()] if node else []

    def connect(self, queue: WorkQueue[str], liveness: Liveness) -> list[Registration]:
        """Queue a Swarm when an object that it depends on changes; return the handlers' registrations."""
        enqueue = queue.add

        def enqueue_soon(swarm: str) -> None:
            queue.add_after(swarm, _BURST)

        def near(changed: Object) -> None:
            for swarm in self.swarms.store.index_keys(INDEX_NAMESPACE, changed.namespace):
                enqueue(swarm)

        def pod_changed(old: Object, new: Object) -> None:
            if view(old) != view(new):
                near(new)

        def pod_ended(pod: Object) -> None:
            if view(pod).finished:
                liveness.note_end(pod.uid)
            near(pod)

        def own(changed: Object) -> None:
            # Acknowledgements come in bursts; the delay lets one reconcile process a burst.
            for swarm in by_swarm(changed):
                enqueue_soon(swarm)

        def swarm(changed: Object) -> None:
            enqueue(changed.key)

        pairs: list[tuple[Informer, Callable[[Object], None]]] = [
            (self.swarms, swarm),
            (self.stateful_sets, near),
            (self.deployments, near),
            (self.config_maps, own),
            (self.leases, own),
        ]
        registrations = [informer.on_change(handle, handle) for informer, handle in pairs]
        registrations.append(
            self.pods.add_handler(on_add=lambda pod, _: near(pod), on_update=pod_changed, on_delete=pod_ended)
        )
        return registrations


async def _internal_health(_: web.Request) -> web.Response:
    """Return start time and version, as ``/internal/health`` of k8s-swarm's controller does."""
    body = {"date": _STARTED, "version": version.version() or ""}
    return web.json_response(body, dumps=lambda value: json.dumps(value) + "\n")


_NAMESPACE = {INDEX_NAMESPACE: worker_pods.by_namespace}
_SWARM = {INDEX_SWARM: by_swarm}


def _shrink_node(node: Object) -> Object:
    """Reduce a Node to the fields that ``liveness`` and ``node_addresses`` read."""
    conditions = [
        {"type": "Ready", "status": one.get("status")}
        for one in (node.status or {}).get("conditions") or ()
        if one.get("type") == "Ready"
    ]
    addresses = (node.status or {}).get("addresses") or []
    return node.with_fields(
        spec={"taints": (node.spec or {}).get("taints") or []},
        status={"conditions": conditions, "addresses": addresses},
    )
