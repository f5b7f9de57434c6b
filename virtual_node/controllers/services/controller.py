"""Copies upper Services and their endpoints to the lower cluster for the pods that use them.

Services in ``services.always`` are copied, and those of namespaces with pods on our virtual nodes. The work
queue is keyed by the upper Service (``namespace/name``). Every related change in both clusters adds that key,
and ``reconcile`` compares the caches and writes the difference, so it may run at any time. After a restart,
the existing copies add their keys, and copies that are no longer wanted are deleted.

An unmanaged lower Service is never touched, in particular the lower cluster's own ``default/kubernetes`` and
``kube-system/kube-dns``. Pods then use the lower cluster's Service of that name, and the upper Service gets
an event.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from clusterset.model.pod.eligibility import SERVICE_CONTROLLERS
from controller_runtime import resources
from controller_runtime.errors import ApiError, ConfigError, Unavailable, is_retryable
from controller_runtime.objects import Object
from controller_runtime.util.backoff import ExponentialBackoff
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base import peers
from virtual_node.controllers.base.caches import INDEX_NAMESPACE, INDEX_SERVICE, ClusterCaches, upper_service
from virtual_node.controllers.base.context import (
    TOO_LARGE_RETRY,
    ClusterContext,
    namespace_of,
    requeue_on_change,
)
from virtual_node.controllers.base.problems import SERVICE_CONFLICT, Problem
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.controllers.services.endpoint_slices import (
    EndpointMirror,
    endpoint_mirror,
    service_of_upper,
    upper_slices,
)
from virtual_node.controllers.services.environment import has_address
from virtual_node.controllers.services.mirror import ServiceCopies
from virtual_node.controllers.services.users import GRACE, NamespaceUsers

_FOREIGN_AGAIN = 600.0
"""Seconds until a taken name is tried again. Watching all lower Services instead would cost more."""
_BEHIND = 5.0
"""Seconds until a requeue while a cache is behind; normally the missing event requeues the key earlier."""
_SETTLE_SECONDS = 2.0
_WORKERS = 8
_KUBE_SYSTEM = "kube-system"


@dataclass(eq=False, repr=False)
class ServiceController:
    """Keeps the lower copies of upper Services and their endpoints."""

    context: ClusterContext
    caches: ClusterCaches
    namespaces: Namespaces
    _endpoints: EndpointMirror = field(init=False)
    """Set by ``run`` before the first reconcile."""
    _refused: set[str] = field(default_factory=set)
    """Keys of upper Services whose copying failed at the last try."""
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new event, whenever the copy of a Service changes or cannot be created."""

    def __post_init__(self) -> None:
        """Create the copies' writer and the work queue."""
        self._copies = ServiceCopies(self.context, self.namespaces, self.caches.lower_services)
        self._is_enabled = SERVICE_CONTROLLERS in self.context.controllers
        self.controller = self.context.controller(
            "services", self.reconcile, workers=_WORKERS, flow=namespace_of
        )
        self._users = NamespaceUsers(self.caches.pods.upper.values(), on_change=self._add_all)
        self._slices = upper_slices(self.context)

    async def run(self) -> None:
        """Mirror until cancelled if ``enableControllers`` has ServiceControllers; wait for a cluster that is down."""
        if not self._is_enabled:
            return
        self._endpoints = endpoints = await self._choose()
        self._watch(endpoints)
        async with asyncio.TaskGroup() as group:
            for informer in (self._slices, endpoints.lower):
                group.create_task(informer.run(), name=f"{self.context.name} endpoints")
            # Wait, because objects that are not listed yet would look deleted.
            for informer in (
                self.caches.upper_services,
                self.caches.lower_services,
                self._slices,
                endpoints.lower,
                self.caches.pods.lower,
                *self.caches.pods.upper.values(),
            ):
                await informer.wait_synced()
            group.create_task(self.controller.run(), name=f"{self.context.name} services")

    async def reconcile(self, key: str) -> Result | None:
        """Create, update or delete the copy of one Service and its endpoints."""
        if self.context.too_large(namespace_of(key)) is not None:
            return Result(requeue_after=TOO_LARGE_RETRY)
        upper = self.caches.upper_services.store.get(key)
        lower_namespace = self.context.lower_namespace(namespace_of(key))
        for copy in self.caches.lower_services.store.by_index(INDEX_SERVICE, key):
            if copy.namespace != lower_namespace and not await self._copies.is_used_elsewhere(copy):
                # The configuration has changed and maps the upper namespace to another lower one now.
                await self._copies.delete(copy)
        if upper is None or upper.metadata.deletion_timestamp is not None:
            self._copies.forget(key)
            self._refused.discard(key)
            if not self._is_there(key):
                return None
            if upper is None and await peers.exists(self.context.upper, resources.SERVICES, key):
                # Our cache is behind that of another process, which has made the copy.
                return Result(requeue_after=_BEHIND)
            return await self._remove(key)
        if not self._is_wanted(upper):
            return await self._remove_unused(upper, lower_namespace)
        if (full := self.context.cannot_grow(upper, self._copies.of(key))) is not None:
            if key not in self._refused:
                self.context.warn(upper, full.event_reason, full.message)
            self._refused.add(key)
            self._progressed()
            return Result(requeue_after=full.again)
        try:
            problem = await self._copies.ensure(upper, lower_namespace)
        except ApiError as error:
            self._failed(upper, error)
            raise
        self._refused.discard(key)
        if problem is not None:
            self._complain(upper, problem)
            await self._endpoints.remove(key)
            return Result(requeue_after=_FOREIGN_AGAIN if problem.event_reason == SERVICE_CONFLICT else GRACE)
        await self._endpoints.sync(upper, lower_namespace)
        return None

    async def settled(self, namespace: str) -> None:
        """Wait until the Services of an upper namespace have lower copies, but for at most ``_SETTLE_SECONDS``.

        A container's environment is fixed when it starts, so the first pod of a namespace must wait for the
        addresses of the Services that existed before the pod.
        """
        if not self._is_enabled:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                while self._unsettled(namespace):
                    await self._progress.wait()

    def _unsettled(self, namespace: str) -> bool:
        lower_namespace = self.context.lower_namespace(namespace)
        return any(
            not has_address(
                service, self.caches.lower_services.store.get(f"{lower_namespace}/{service.name}")
            )
            and service.key not in self._copies.foreign
            and service.key not in self._refused
            and service.metadata.deletion_timestamp is None
            and self._is_wanted(service)
            for service in self.caches.upper_services.store.by_index(INDEX_NAMESPACE, namespace)
        )

    def _progressed(self, _copy: Object | None = None) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _is_wanted(self, service: Object) -> bool:
        return self._copies.is_always(service.namespace, service.name) or (
            service.namespace in self._users
            and self.context.lower_namespace(service.namespace) != _KUBE_SYSTEM
            and self.namespaces.allowed(service.namespace)
        )

    async def _remove_unused(self, upper: Object, namespace: str) -> Result | None:
        """Delete the copy of an unused Service after a grace period, unless another installation or process uses it."""
        if not self._is_there(upper.key):
            return None
        copy = self._copies.of(upper.key)
        if copy is not None:
            await self._copies.unmark(copy)
            if self._copies.is_always_needed_elsewhere(copy):
                return None  # when that installation removes its annotation, the event requeues this key
            if self._copies.unused.get(upper.key, copy.uid) != copy.uid:
                return None  # recreated by another process, for pods that are not created yet
        if left := self._users.grace(upper.namespace):
            return Result(requeue_after=left)
        if await peers.have_pods_in(self.context, namespace):
            return Result(requeue_after=GRACE)
        if copy is not None:
            self._copies.unused[upper.key] = copy.uid
        return await self._remove(upper.key)

    async def _remove(self, key: str) -> Result | None:
        await self._endpoints.remove(key)
        if (copy := self._copies.of(key)) is not None:
            await self._copies.delete(copy)
        return None

    def _is_there(self, key: str) -> bool:
        endpoints = self._endpoints.lower.store.by_index(INDEX_SERVICE, key)
        return self._copies.of(key) is not None or bool(endpoints)

    def _failed(self, upper: Object, error: ApiError) -> None:
        """End the wait of pods for the Service; report a permanent error as an event."""
        self._refused.add(upper.key)
        self._progressed()
        if not is_retryable(error):
            message = f"Lower cluster {self.context.name} refused the Service: {error.message}"
            self.context.warn(upper, "FailedMirror", message)

    def _complain(self, upper: Object, problem: Problem) -> None:
        """Report once that the lower name or namespace is not ours."""
        if self._copies.foreign.get(upper.key) == upper.uid:
            return
        self._copies.foreign[upper.key] = upper.uid
        self._progressed()
        metrics.FOREIGN_SERVICES.labels(self.context.name).inc()
        # A Service in services.always has a namesake in every cluster (kubernetes, kube-dns). An event would be
        # written at each start.
        if not self._copies.is_always(upper.namespace, upper.name):
            self.context.warn(upper, problem.event_reason, problem.message)

    async def _choose(self) -> EndpointMirror:
        backoff = ExponentialBackoff(0.5, 30.0)
        while True:
            try:
                return await endpoint_mirror(self.context, self.caches.pods, self._slices)
            except (ApiError, ConfigError) as error:
                if not isinstance(error, Unavailable):
                    self.context.log.warning(
                        "cannot read EndpointSlices of the lower cluster", error=str(error)
                    )
            await asyncio.sleep(backoff.when("endpoints"))

    def _watch(self, endpoints: EndpointMirror) -> None:
        self.caches.lower_services.on_change(self._progressed, self._progressed)
        requeue_on_change(
            self.controller,
            (self.caches.upper_services, lambda service: (service.key,)),
            (self.caches.lower_services, upper_service),
            (self._slices, service_of_upper),
            (endpoints.lower, endpoints.service_of),
        )

    def _add_all(self, namespace: str) -> None:
        for key in self.caches.upper_services.store.index_keys(INDEX_NAMESPACE, namespace):
            self.controller.queue.add(key)
