"""Mirrors the endpoints of copied Services, as EndpointSlices, or as Endpoints in older lower clusters.

Each of the two classes compares the caches of the two clusters for one Service and writes the difference. The
ServiceController decides for which Services, and when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.controllers.base import peers
from virtual_node.controllers.base.caches import INDEX_SERVICE
from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.controllers.base.preconditions import create_new, delete_only, patch_only
from virtual_node.translate.base import ownership
from virtual_node.translate.services import endpoints as translate


def upper_slices(context: ClusterContext) -> Informer:
    """Return an informer of all upper EndpointSlices, indexed by the key of their Service."""
    return context.upper_informer(resources.ENDPOINT_SLICES, indexers={INDEX_SERVICE: service_of_upper})


def service_of_upper(piece: Object) -> Iterable[str]:
    """Return the key of the Service that an upper EndpointSlice belongs to; empty: none."""
    name = piece.labels.get(translate.LABEL_SERVICE)
    return (f"{piece.namespace}/{name}",) if name else ()


async def endpoint_mirror(context: ClusterContext, caches: PodCaches, upper: Informer) -> EndpointMirror:
    """Return a mirror to EndpointSlices; to Endpoints if the lower cluster is older than Kubernetes 1.21.

    Raises:
        ApiError: the lower cluster does not answer, or refuses.
    """
    ours = f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id}"
    try:
        await context.lower.exists(resources.ENDPOINT_SLICES, label_selector=ours)
    except NotFound:
        return LegacyEndpoints(context, caches, upper=upper)
    return EndpointSlices(context, caches, upper=upper)


class EndpointMirror(ABC):
    """Keeps the lower endpoints of Services equal to the upper ones."""

    resource: ClassVar[Resource]

    def __init__(self, context: ClusterContext, caches: PodCaches, *, upper: Informer) -> None:
        self._context = context
        self._caches = caches
        self._upper = upper
        self.lower = context.lower_informer(self.resource, indexers={INDEX_SERVICE: self.service_of})

    @abstractmethod
    def service_of(self, thing: Object) -> Iterable[str]:
        """Return the key of the upper Service that an object in ``lower`` was created for."""

    @abstractmethod
    async def sync(self, service: Object, namespace: str) -> None:
        """Update the endpoints of an upper Service in a lower namespace.

        Raises:
            ApiError: the lower cluster refuses; the caller retries.
        """

    async def remove(self, key: str) -> None:
        """Delete everything created for the upper Service of that key (``namespace/name``)."""
        for thing in self.lower.store.by_index(INDEX_SERVICE, key):
            await self._delete(thing)

    async def _delete(self, thing: Object) -> None:
        await delete_only(self._context.lower, self.resource, thing)

    @staticmethod
    @abstractmethod
    def _difference(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the patch that makes a lower object equal to the desired one; None: it is equal."""

    async def _write(self, current: Object | None, desired: dict[str, Any]) -> None:
        """Create a lower object, or patch what differs; an unmanaged object of that name is left alone."""
        context = self._context
        if current is None:
            current = await create_new(context.lower, self.resource, desired)
            if current is None:
                return
            # The object is either ours and not in the cache yet, or unmanaged.
        upper_uid = desired["metadata"]["labels"][names.LABEL_UPPER_UID]
        upper_namespace = desired["metadata"]["annotations"][names.ANNOTATION_UPPER_NAMESPACE]
        if not ownership.is_owned_by(current, context.cluster_id, upper_namespace, upper_uid=upper_uid):
            context.log.warning(
                "lower endpoints are not owned; they are not changed",
                resource=self.resource.plural,
                name=current.key,
            )
            return
        if patch := self._difference(current.to_dict(), desired):
            await patch_only(context.lower, self.resource, current, patch)

    def _find_pod(self, namespace: str, name: str, uid: str) -> translate.LowerPod | None:
        upper = self._caches.upper_pod(uid) if uid else self._caches.upper_by_name(namespace, name)
        if upper is None or upper.namespace != namespace:
            return None
        pod = self._caches.lower_of(upper)
        if pod is None:
            return None
        return translate.LowerPod(pod.namespace, pod.name, pod.uid, (pod.spec or {}).get("nodeName", ""))


class EndpointSlices(EndpointMirror):
    """Keeps one lower EndpointSlice for each upper one."""

    resource = resources.ENDPOINT_SLICES
    _difference = staticmethod(translate.slice_patch)

    def __init__(self, context: ClusterContext, caches: PodCaches, *, upper: Informer) -> None:
        super().__init__(context, caches, upper=upper)
        self._in_step: dict[tuple[str, str], Object] = {}
        """Upper slices at the last comparison with their copies, by lower namespace and name."""

    def service_of(self, thing: Object) -> Iterable[str]:
        """See ``EndpointMirror``."""
        return (f"{ownership.upper_namespace(thing)}/{thing.labels.get(translate.LABEL_SERVICE, '')}",)

    async def sync(self, service: Object, namespace: str) -> None:
        """See ``EndpointMirror``."""
        key = service.key
        existing = {
            (piece.namespace, piece.name): piece for piece in self.lower.store.by_index(INDEX_SERVICE, key)
        }
        if not _is_external(service):
            for piece in self._upper.store.by_index(INDEX_SERVICE, key):
                where = (namespace, self._lower_name(service, piece))
                current = existing.pop(where, None)
                desired = translate.lower_slice(
                    piece.to_dict(),
                    service=service.name,
                    namespace=namespace,
                    cluster_id=self._context.cluster_id,
                    find_pod=self._find_pod,
                    known=translate.known_pods(current.to_dict() if current is not None else {}),
                    rules=self._context.rules.policy.of(service.namespace).metadata,
                )
                if await self._is_outdated(where, piece, current, desired):
                    continue  # our cache is behind; the missing event requeues this key
                self._in_step[where] = piece
                await self._write(current, desired)
        if existing:
            await self._remove_surplus(service, namespace, list(existing.values()))

    async def _is_outdated(
        self, where: tuple[str, str], piece: Object, current: Object | None, desired: Mapping[str, Any]
    ) -> bool:
        """Report whether a copy differs because another process knows a later upper state than our cache."""
        return (
            current is not None
            and self._in_step.get(where) is piece
            and translate.slice_patch(current.to_dict(), desired) is not None
            and not await peers.is_current(self._context.upper, resources.ENDPOINT_SLICES, piece)
        )

    async def _remove_surplus(self, service: Object, namespace: str, surplus: list[Object]) -> None:
        wanted = await self._wanted_upper(service)
        for piece in surplus:
            if piece.namespace == namespace:
                is_needed = piece.name in wanted
            else:
                # Our earlier configuration, or another process, maps the upper namespace to this lower one. The
                # slice stays while another process has pods there.
                is_needed = await peers.have_pods_in(self._context, piece.namespace)
            if not is_needed:
                await self._delete(piece)

    async def _wanted_upper(self, service: Object) -> set[str]:
        """Return the lower names of a Service's upper slices.

        Reads live, because another process may have copied a slice that our cache does not show yet.
        """
        if _is_external(service):
            return set()
        page = await self._context.upper.list(
            resources.ENDPOINT_SLICES,
            namespace=service.namespace,
            label_selector=f"{translate.LABEL_SERVICE}={service.name}",
        )
        return {self._lower_name(service, piece) for piece in page.items}

    def _lower_name(self, service: Object, piece: Object) -> str:
        return translate.slice_name(service.name, piece.uid, self._context.cluster_id)

    async def _delete(self, thing: Object) -> None:
        self._in_step.pop((thing.namespace, thing.name), None)
        await super()._delete(thing)


class LegacyEndpoints(EndpointMirror):
    """Keeps one lower Endpoints object for all upper slices of a Service."""

    resource = resources.ENDPOINTS
    _difference = staticmethod(translate.endpoints_patch)

    def service_of(self, thing: Object) -> Iterable[str]:
        """See ``EndpointMirror``."""
        return (ownership.upper_key(thing),)

    async def sync(self, service: Object, namespace: str) -> None:
        """See ``EndpointMirror``."""
        if _is_external(service):
            await self.remove(service.key)
            return
        current = self.lower.store.get(f"{namespace}/{service.name}")
        desired = translate.lower_endpoints(
            service.to_dict(),
            [piece.to_dict() for piece in self._upper.store.by_index(INDEX_SERVICE, service.key)],
            namespace=namespace,
            cluster_id=self._context.cluster_id,
            find_pod=self._find_pod,
            known=translate.known_pods(current.to_dict() if current is not None else {}),
            rules=self._context.rules.policy.of(service.namespace).metadata,
        )
        await self._write(current, desired)


def _is_external(service: Object) -> bool:
    return (service.spec or {}).get("type") == "ExternalName"
