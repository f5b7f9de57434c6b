"""Keeps a Service in each lower namespace with our pods that leads to the upper API server at port 443.

The pods' ``hostAliases`` contain its address, which therefore stays: a deleted Service is created again with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import ApiError, Invalid
from controller_runtime.objects import Object, from_dict
from controller_runtime.resources import Resource
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import create_new, delete_only, have_pods_in, patch_only
from virtual_node.controllers.copies.users import GRACE, NamespaceUsers
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.controllers.pods.upper_endpoint import FRESH, UpperEndpoint
from virtual_node.translate.base import ownership
from virtual_node.translate.pods.api_server import Endpoint, may_use_upper
from virtual_node.translate.services import api_service
from virtual_node.translate.services.services import cluster_ip

_WORKERS = 2
_PATIENCE = 3.0
"""Seconds for which a new pod waits for the Service of its namespace."""


@dataclass(eq=False, repr=False)
class ApiServices:
    """Creates the Services before a namespace's first pod, and deletes them after its last."""

    context: ClusterContext
    caches: ClusterCaches
    namespaces: Namespaces
    endpoint: UpperEndpoint
    _addresses: dict[str, str] = field(default_factory=dict)
    """Address of the Service by upper namespace."""
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the caches and the work queue."""
        context = self.context
        selector = f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id},{names.LABEL_API_SERVER}"
        self._services = context.lower_informer(resources.SERVICES, selector=selector, name="api-services")
        self._slices = context.lower_informer(resources.ENDPOINT_SLICES, selector=selector, name="api-slices")
        self.informers: tuple[Informer, ...] = (self._services, self._slices)
        """The caller runs them."""
        self.controller = context.controller(
            "api-services", self.reconcile, workers=_WORKERS, first_delay=1.0
        )
        self._users = NamespaceUsers(self.caches.pods.upper.values(), on_change=self.controller.queue.add)
        for informer in self.informers:
            informer.add_handler(on_add=lambda found, _initial: self._changed(found), on_delete=self._changed)

    async def run(self) -> None:
        """Follow changes until cancelled; the caches of pods have synced."""
        for informer in self.informers:
            await informer.wait_synced()
        await self.controller.run()

    def _changed(self, found: Object) -> None:
        namespace = ownership.upper_namespace(found)
        if api_service.is_ours(found, self.context.cluster_id, namespace):
            self.controller.queue.add(namespace)

    async def address(self, upper_namespace: str) -> str:
        """Return the address of a namespace's Service, which is created if necessary; empty: there is none.

        A pod does not need it in order to start, so errors are only logged, and the Service is tried again later.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._ensure(upper_namespace, await self.endpoint.get())
        except (ApiError, TimeoutError) as error:
            self.context.log.warning(
                "no Service for the upper API server", namespace=upper_namespace, error=str(error)
            )
            self.controller.queue.add_after(upper_namespace, GRACE)
            return ""

    async def reconcile(self, upper_namespace: str) -> Result | None:
        """Create, update or delete the Service of an upper namespace."""
        endpoint = await self.endpoint.get()
        if upper_namespace not in self._users:
            return await self._remove(upper_namespace)
        settings = self.context.settings
        is_for_all = may_use_upper(settings.kubernetes_service, identities=settings.enable_serviceaccount)
        is_known = upper_namespace in self._addresses
        if not (is_for_all or is_known or self._existing(self._services, self._place(upper_namespace))):
            return None  # ``address`` creates it if a pod's annotation asks for it
        if not await self._ensure(upper_namespace, endpoint):
            return None
        return Result(requeue_after=FRESH) if endpoint.may_change else None

    async def _ensure(self, upper_namespace: str, endpoint: Endpoint) -> str:
        """Ensure the Service and its EndpointSlice; return the Service's address, or empty if there is no Service."""
        context = self.context
        if not endpoint.ips or not self.namespaces.allows_namespace(upper_namespace):
            return ""
        async with self._locks.setdefault(upper_namespace, asyncio.Lock()):
            place = self._place(upper_namespace)
            slice_body = api_service.endpoint_slice(
                context.cluster_id, **place, ips=endpoint.ips, port=endpoint.port
            )
            service = self._existing(self._services, place)
            if service is None and not endpoint.needs_service and upper_namespace not in self._addresses:
                return ""
            if service is None:
                known = self._addresses.get(upper_namespace, "")
                body = api_service.service(context.cluster_id, **place, ip=known)
                try:
                    service = await self._created(resources.SERVICES, body)
                except Invalid:
                    if not known:
                        raise
                    # Another Service has the address now.
                    del self._addresses[upper_namespace]
                    body = api_service.service(context.cluster_id, **place)
                    service = await self._created(resources.SERVICES, body)
            if service is None:
                return ""
            await self._ensure_slice(slice_body, place)
            self._addresses[upper_namespace] = address = cluster_ip(service.spec or {})
            return address

    async def _ensure_slice(self, body: Mapping[str, Any], place: Mapping[str, str]) -> None:
        found = self._existing(self._slices, place)
        if found is not None and (found.to_dict().get("addressType") != body["addressType"]):
            await delete_only(self.context.lower, resources.ENDPOINT_SLICES, found)
            found = None
        if found is None:
            found = await self._created(resources.ENDPOINT_SLICES, body)
        if found is not None and not api_service.has_endpoints(found.to_dict(), body):
            patch = {"endpoints": body["endpoints"], "ports": body["ports"]}
            await patch_only(self.context.lower, resources.ENDPOINT_SLICES, found, patch)

    def _place(self, upper_namespace: str) -> dict[str, str]:
        return {
            "namespace": self.context.lower_namespace(upper_namespace),
            "upper_namespace": upper_namespace,
        }

    def _existing(self, informer: Informer, place: Mapping[str, str]) -> Object | None:
        name = api_service.name_of(self.context.cluster_id)
        found = informer.store.get(f"{place['namespace']}/{name}")
        is_ours = found is not None and api_service.is_ours(
            found, self.context.cluster_id, place["upper_namespace"]
        )
        return found if is_ours else None

    async def _created(self, resource: Resource, body: Mapping[str, Any]) -> Object | None:
        """Create an object; return it, or the one of ours that exists. None: an unmanaged object has its name."""
        metadata = body["metadata"]
        existing = await create_new(self.context.lower, resource, body)
        if existing is None:
            found = await self.context.lower.get(resource, metadata["name"], namespace=metadata["namespace"])
            existing = from_dict(found)
        upper_namespace = metadata["annotations"][names.ANNOTATION_UPPER_NAMESPACE]
        return existing if api_service.is_ours(existing, self.context.cluster_id, upper_namespace) else None

    async def _remove(self, upper_namespace: str) -> Result | None:
        """Delete the Service of a namespace without pods after a grace period, unless other processes have pods there."""
        place = self._place(upper_namespace)
        found = self._existing(self._services, place)
        endpoints = self._existing(self._slices, place)
        if found is None and endpoints is None:
            self._addresses.pop(upper_namespace, None)
            self._locks.pop(upper_namespace, None)
            return None
        if left := self._users.grace(upper_namespace):
            return Result(requeue_after=left)
        if self.caches.pods.are_in(place["namespace"]) or await have_pods_in(
            self.context, place["namespace"]
        ):
            return Result(requeue_after=GRACE)
        for resource, one in ((resources.SERVICES, found), (resources.ENDPOINT_SLICES, endpoints)):
            if one is not None:
                await delete_only(self.context.lower, resource, one)
        return None
