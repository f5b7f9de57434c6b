"""One lower cluster: its clients, caches, controllers and virtual nodes, in one task group.

Lower clusters share no state except ``KubeletEndpoints`` and caches of the upper cluster, so a failure does not spread
from one to another. The process (``app.py``) runs each in a supervised task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from clusterset.config import PV_CONTROLLERS, Cluster
from clusterset.following import connection
from controller_runtime.auth import kubeconfig
from controller_runtime.cache.informer import Informer
from controller_runtime.cache.shared import SharedInformers
from controller_runtime.client.client import Client, warn
from controller_runtime.errors import ApiError, CacheFull, ConfigError, Unavailable
from controller_runtime.events import EventRecorder
from controller_runtime.process import lifecycle
from controller_runtime.workqueue.queue import WorkQueue
from virtual_node import metrics
from virtual_node.cluster.credential_renewal import CredentialRenewal
from virtual_node.cluster.kubelet_endpoints import KubeletEndpoints, KubeletService
from virtual_node.cluster.start_checks import refuse_real_nodes, refuse_upper_as_lower
from virtual_node.config.types import Config
from virtual_node.controllers import events
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.controllers.certificates import CertificateController
from virtual_node.controllers.copies.facade import Follow
from virtual_node.controllers.copies.references import Allocations, DependencyController
from virtual_node.controllers.events import EventMirror
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.node_lease import Identity, NodeLease, this_process
from virtual_node.controllers.nodes import HealthController, NodeController
from virtual_node.controllers.pods.api_services import ApiServices, UpperEndpoint
from virtual_node.controllers.pods.controller import PodController
from virtual_node.controllers.pods.creation_delays import CreationDelays
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.lower_owners import LowerOwners
from virtual_node.controllers.pods.refusals import Refusals
from virtual_node.controllers.pods.service_links import ServiceLinks
from virtual_node.controllers.pods.status_writer import OutageController, StatusWriter
from virtual_node.controllers.pods.updater import PodUpdater
from virtual_node.controllers.pods.wait_reporter import WaitReporter
from virtual_node.controllers.tokens import IdentityController
from virtual_node.controllers.volumes.facade import Volumes
from virtual_node.examine.leases import Report
from virtual_node.translate.nodes.node import TOO_LARGE

COMPONENT = "virtual-node"
TOO_LARGE_PAUSE = 300.0
"""Seconds until a lower cluster that exceeds its limit of memory is listed again."""
_REPORTING = 5.0
"""Maximum seconds to report on the Nodes that a cluster stops."""


@dataclass(eq=False, repr=False)
class LowerCluster:
    """Runs everything of one lower cluster."""

    config: Cluster
    settings: Config
    """Configuration of the process."""
    cluster_id: str
    """Identity of the upper cluster."""
    endpoints: KubeletEndpoints
    """The kubelet APIs of the process."""
    report: Callable[[], Report] = Report
    """Returns problems that only this process knows, published on the virtual nodes' Leases."""
    identity: Identity | None = None
    """Holder of these Leases; None: ``this_process()``."""
    shared: SharedInformers | None = None
    """Caches of the upper cluster that all lower clusters of the process share; None: this cluster has its own."""
    full_since: float | None = None
    """Loop time since which the lower cluster has been too large, also for earlier objects of this class; None: it is not."""
    nodes: dict[str, NodeController] = field(default_factory=dict)
    leases: dict[str, NodeLease] = field(default_factory=dict)
    health: HealthController | None = None
    caches: PodCaches | None = None
    lower_nodes: Informer | None = None
    _context: ClusterContext | None = None
    pods: PodController | None = None

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._log = structlog.get_logger(component=COMPONENT, cluster=self.config.name)

    @property
    def waits_for(self) -> str:
        """Return why nothing is mirrored yet: another process holds a virtual node's Lease; empty: not waiting."""
        return next((lease.waits_for for lease in self.leases.values() if lease.waits_for), "")

    async def run(self) -> None:
        """Run until cancelled, or until an error that only a restart can resolve.

        Raises:
            ConfigError: a kubeconfig or a virtual node's name cannot be used.
            ApiError: a cluster refuses or does not answer before the controllers start.
            CacheFull: the lower cluster has more objects than ``cacheBytes`` allows.
            ExceptionGroup: a controller failed with an unexpected error.
        """
        settings, config = self.settings, self.config
        upper_config = await kubeconfig.load(settings.kubeconfig, server=settings.server)
        lower_config = await connection(config)
        warn(lower_config, cluster=config.name)
        agent = f"{COMPONENT}/{config.name}"
        async with contextlib.AsyncExitStack() as clients:
            upper = await clients.enter_async_context(
                Client(
                    upper_config,
                    qps=settings.kube_api_qps,
                    burst=settings.kube_api_burst,
                    user_agent=agent,
                    cluster="upper",
                )
            )
            lower = await clients.enter_async_context(
                Client(
                    lower_config,
                    qps=config.client_qps,
                    burst=config.client_burst,
                    cache_bytes=config.cache_bytes,
                    user_agent=agent,
                    cluster=config.name,
                )
            )
            recorder = EventRecorder(upper, component=COMPONENT, host=config.name)
            context = ClusterContext(
                name=config.name,
                cluster_id=self.cluster_id,
                upper=upper,
                lower=lower,
                settings=settings,
                config=config,
                nodes={node.name: node for node in config.virtual_nodes()},
                recorder=recorder,
                log=self._log,
                shared=self.shared,
            )
            await refuse_real_nodes(context.upper, context.nodes)
            # Checked before anything is written; a cluster that does not answer yet is checked again later.
            with contextlib.suppress(Unavailable):
                await refuse_upper_as_lower(context)
            identity = self.identity or this_process()
            leases = self.leases = {
                name: NodeLease(context, name, identity) for name in sorted(context.nodes)
            }
            services: list[KubeletService] = []
            try:
                for lease in leases.values():
                    await lease.acquire()
                await self._run_controllers(context, services)
            finally:
                metrics.show_stopped(config.name)
                self.leases = {}
                try:
                    await asyncio.gather(*(lease.release() for lease in leases.values()))
                finally:
                    # Streams continue after this cluster has stopped: a user may still read a log here while
                    # a successor mirrors.
                    self.endpoints.retire(services, clients.pop_all(), cluster=config)

    def recent_events(self) -> list[dict[str, Any]]:
        """Return the last events written to the upper cluster: time, type, reason, message, object, cluster."""
        if self._context is None:
            return []
        return [
            {
                "time": event.get("lastTimestamp") or event.get("eventTime") or "",
                "type": event.get("type", ""),
                "reason": event.get("reason", ""),
                "message": event.get("message", ""),
                "object": f"{involved.get('kind', '')} {involved.get('namespace') or ''}/{involved.get('name', '')}",
                "cluster": self.config.name,
            }
            for event in self._context.recorder.recent
            if (involved := event.get("involvedObject"))
        ]

    async def _run_controllers(self, context: ClusterContext, services: list[KubeletService]) -> None:
        caches = ClusterCaches(context)
        health = HealthController(context, changed=self._refresh)
        made = ClusterControllers(
            context, caches, health, node_uid=lambda name: self.nodes[name].uid if name in self.nodes else ""
        )
        self.health, self.pods, self.caches, self._context = health, made.pods, caches.pods, context
        self.lower_nodes = caches.lower_nodes
        try:
            async with asyncio.TaskGroup() as group:
                for informer in (*caches.all(), *made.informers):
                    group.create_task(informer.run(), name=f"{context.name} informer")
                renewal = CredentialRenewal(context, self.config.token_secrets)
                for name, work in (
                    ("events out", context.recorder.run()),
                    ("health", health.run()),
                    ("outage", made.outage.run()),
                    ("tokens", renewal.run()),
                ):
                    group.create_task(work, name=f"{context.name} {name}")
                if made.volumes is not None:
                    group.create_task(made.volumes.run(), name=f"{context.name} volumes")
                await self._serve_nodes(context, caches, health=health, group=group, services=services)
                # Pods are reconciled only when both clusters have been listed completely, because otherwise
                # the lower pod of an upper pod that is not listed yet would look like an orphan.
                for informer in caches.deciding():
                    await informer.wait_synced()
                await refuse_upper_as_lower(context)
                await made.pods.adopt_all()
                made.start(group)
                self.full_since = None
                self._log.info("mirroring", nodes=sorted(context.nodes), pods=len(caches.pods.lower.store))
        except BaseExceptionGroup as errors:
            reasons = [str(leaf) for leaf in lifecycle.leaves(errors) if isinstance(leaf, CacheFull)]
            if not reasons:
                raise
            await self._give_up(context, reasons[0])
            if self.full_since is None:
                self.full_since = asyncio.get_running_loop().time()
            # Nothing reads the statuses of the pods from now on.
            await made.outage.stopped(TOO_LARGE, reasons[0], since=self.full_since, longest=TOO_LARGE_PAUSE)
            raise CacheFull(reasons[0]) from None
        finally:
            self.nodes.clear()

    async def _give_up(self, context: ClusterContext, why: str) -> None:
        """Report on the Nodes that the lower cluster is too large. Errors are only logged, because the cluster stops."""
        recorder = EventRecorder(context.upper, component=COMPONENT, host=context.name)
        try:
            async with asyncio.timeout(_REPORTING):
                for node in self.nodes.values():
                    await node.give_up(why)
                    if (body := node.node) is not None:
                        recorder.event(body, "Warning", TOO_LARGE, why)
                async with lifecycle.beside(recorder.run()):
                    await asyncio.sleep(0)  # otherwise the recorder would be cancelled before it starts
        except (ApiError, ConfigError, TimeoutError) as error:
            self._log.warning("not reported that the lower cluster is too large", error=str(error))

    def _refresh(self) -> None:
        for node in self.nodes.values():
            node.refresh()

    async def _serve_nodes(
        self,
        context: ClusterContext,
        caches: ClusterCaches,
        *,
        health: HealthController,
        group: asyncio.TaskGroup,
        services: list[KubeletService],
    ) -> None:
        """Register every virtual node and serve its kubelet API; append the started services to ``services``."""
        for name, node in context.nodes.items():
            service = await self.endpoints.serve(context, caches.pods, node, lower_nodes=caches.lower_nodes)
            services.append(service)
            controller = NodeController(
                context,
                node,
                caches,
                health=health,
                addresses=self.endpoints.addresses(node),
                kubelet_port=service.port,
            )
            self.nodes[name] = controller
            group.create_task(controller.run(), name=f"node {name}")
            group.create_task(self.leases[name].run(controller, self.report), name=f"lease {name}")


@dataclass(eq=False, repr=False)
class ClusterControllers:
    """The controllers that mirror pods and what pods need; those of Nodes and Leases are not included.

    Attributes:
        pods: mirrors the pods.
        outage: reports them not ready while the cluster cannot be read. The caller runs it before the pods are listed.
        volumes: mirrors claims and volumes; None: not enabled. The caller runs it before the pods are listed.
        informers: informers of the controllers that are not in ``ClusterCaches``; the caller runs them.
    """

    context: ClusterContext
    caches: ClusterCaches
    health: HealthController
    node_uid: Callable[[str], str]
    """Returns the uid of a virtual node's Node; empty: unknown."""

    def __post_init__(self) -> None:
        """Create the controllers without any IO."""
        context, caches = self.context, self.caches
        # The queue of the pods comes first, because all that a pod waits for adds the pod to it. Namespaces take turns,
        # so one tenant's thousands of pods do not delay others.
        queue: WorkQueue[str] = context.queue(
            "pods",
            workers=context.settings.pod_sync_workers,
            first_delay=0.1,
            flow=caches.pods.upper_namespace,
        )
        self._namespaces = Namespaces(context, caches)
        self.volumes = (
            Volumes(context, caches, namespaces=self._namespaces, wake=queue.add)
            if PV_CONTROLLERS in context.controllers
            else None
        )
        self._dependencies = DependencyController(
            context, caches, namespaces=self._namespaces, wake=queue.add
        )
        allocations = Allocations(
            context,
            caches,
            dependencies=self._dependencies,
            changed=queue.add,
        )
        status = StatusWriter(
            context, devices=allocations.record, missing_secrets=self._dependencies.missing_secrets
        )
        self._follow = Follow(
            context, caches, namespaces=self._namespaces, dependencies=self._dependencies, wake=queue.add
        )
        self._identities = IdentityController(context, caches, node_uid=self.node_uid)
        self._certificates = CertificateController(context, caches, node_uid=self.node_uid, wake=queue.add)
        endpoint = UpperEndpoint(context.upper, context.settings.kubernetes_service_url)
        self._api_services = ApiServices(context, caches, self._namespaces, endpoint)
        self.informers = (*allocations.informers, *self._api_services.informers)
        links = ServiceLinks(
            context,
            caches,
            self._dependencies,
            settled=self._follow.settled,
            api_services=self._api_services,
        )
        creator = PodCreator(
            context,
            namespaces=self._namespaces,
            dependencies=self._dependencies,
            identities=self._identities,
            certificates=self._certificates,
            volumes=self.volumes,
            service_links=links,
            follow=self._follow,
            delays=CreationDelays(
                context, status, Refusals(queue.add_after), WaitReporter(context, caches.lower_nodes)
            ),
        )
        updater = PodUpdater(context, self._dependencies, links)
        self.pods = PodController(
            context, caches.pods, caches.lower_nodes, queue, creator=creator, updater=updater, status=status
        )
        self.outage = OutageController(context, self.health, caches.pods, status, queue)
        self._owners = LowerOwners(context, caches.pods, self._namespaces)
        claims = () if self.volumes is None else (self.volumes.claims,)
        self._mirror = EventMirror(context, (events.pods(caches.pods), *claims))

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start all controllers except ``volumes``; call it when the caches have synced and the pods are adopted."""
        for name, work in (
            ("pods", self.pods.controller.run()),
            ("owners", self._owners.controller.run()),
            ("namespaces", self._namespaces.run()),
            ("dependencies", self._dependencies.run()),
            ("identities", self._identities.controller.run()),
            ("certificates", self._certificates.run()),
            ("API services", self._api_services.run()),
            ("events", self._mirror.run()),
            ("follow", self._follow.run()),
        ):
            group.create_task(work, name=f"{self.context.name} {name}")
        if period := self.context.settings.full_resync_period:
            group.create_task(self.pods.resync(period))
