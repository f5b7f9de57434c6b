"""Keeps a Service in each lower namespace with our pods that leads to the upper API server at port 443.

The pods' ``hostAliases`` contain its address, which therefore stays: a deleted Service is created again with it.

``UpperEndpoint`` finds where pods of lower clusters reach the upper API server, and whether its certificate fits.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterset.model import names
from clusterset.model.pod.api_access import ROOT_CA, SERVICE
from controller_runtime import resources
from controller_runtime.auth.proxies import split_url
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find_listed
from controller_runtime.errors import ApiError, ConfigError, Invalid, NotFound
from controller_runtime.objects import Object, from_dict
from controller_runtime.resources import Resource
from controller_runtime.tls.pem import TlsMaterial
from controller_runtime.util import event_loop
from controller_runtime.util.repairs import Repairs
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import INDEX_PLACE, ClusterContext
from virtual_node.controllers.base.preconditions import delete_only, have_pods_in, patch_only
from virtual_node.controllers.copies.surroundings import GRACE, NamespaceUsers, UnusedCopies
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate.base import ownership
from virtual_node.translate.objects.namespaces import upper_names
from virtual_node.translate.pods import api_server
from virtual_node.translate.pods.api_server import NAME, Endpoint, may_use_upper
from virtual_node.translate.services import upper_addresses

_WORKERS = 2
_TAKEN_AGAIN = 600.0
"""Seconds until a taken name is tried again, because the watches do not show Services of others."""
_PATIENCE = 3.0
"""Seconds for which a new pod waits for the Service of its namespace."""


class NameTakenError(Exception):
    """An unmanaged object has the name of the Service or its EndpointSlice."""

    def __init__(self, kind: str, name: str) -> None:
        """Name the object and the remedy."""
        super().__init__(f"it has {kind} {name}, which virtual-node did not create: delete it")


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
    _failures: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By upper namespace, why its Service could not be created, and the loop time until which it is not tried for pods."""
    _repairs: Repairs = field(default_factory=Repairs)
    _unused_services: UnusedCopies = field(default_factory=UnusedCopies)
    """Which Services may be deleted, by upper namespace."""
    _unused_slices: UnusedCopies = field(default_factory=UnusedCopies)

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
        self.caches.upper_namespaces.add_handler(on_delete=lambda gone: self.controller.queue.add(gone.name))
        self.caches.lower_namespaces.add_handler(on_add=lambda made, _initial: self._namespace_made(made))
        for informer in self.informers:
            informer.add_handler(
                on_add=lambda found, _initial: self._changed(found),
                on_update=self._changed,
                on_delete=self._changed,
            )

    async def run(self) -> None:
        """Follow changes until cancelled; the caches of pods have synced."""
        for informer in self.informers:
            await informer.wait_synced()
        await self.controller.run()

    def _changed(self, *states: Object) -> None:
        """Requeue the upper namespace of an object, also if its annotation has changed."""
        for found in states:
            if api_server.is_ours(found, self.context.cluster_id):
                self.controller.queue.add(ownership.upper_namespace(found))

    def _namespace_made(self, lower: Object) -> None:
        for name in upper_names(lower):
            self.controller.queue.add(name)

    async def found(self, upper_namespace: str) -> Endpoint:
        """Return the endpoint with the address of a namespace's Service, which is created if necessary.

        A pod does not need the Service in order to start. So if it cannot be created, that is the endpoint's problem, and
        the Service is tried again later.
        """
        endpoint = await self.endpoint.get()
        now = event_loop.now()
        why, until = self._failures.get(upper_namespace, ("", 0.0))
        if now >= until:
            address, why = "", ""
            try:
                async with asyncio.timeout(_PATIENCE):
                    address = await self._ensure(upper_namespace, endpoint)
            except NameTakenError as error:
                why = str(error)
            except (ApiError, TimeoutError) as error:
                why = f"Service {self._name(upper_namespace)} cannot be created: {str(error) or 'no answer'}"
            if not why:
                self._failures.pop(upper_namespace, None)
                return replace(endpoint, service_ip=address)
            self._failures[upper_namespace] = why, now + GRACE
            self.context.log.warning(
                "no Service for the upper API server", namespace=upper_namespace, error=why
            )
            self.controller.queue.add_after(upper_namespace, GRACE)
        text = f"Programs in lower cluster {self.context.name} cannot reach the upper API server by the name {NAME}: {why}"
        return replace(endpoint, problem=endpoint.problem or text)

    def _name(self, upper_namespace: str) -> str:
        return (
            f"{self.context.lower_namespace(upper_namespace)}/{api_server.name_of(self.context.cluster_id)}"
        )

    async def reconcile(self, upper_namespace: str) -> Result | None:
        """Create, update or delete the Service of an upper namespace."""
        endpoint = await self.endpoint.get()
        if upper_namespace not in self._users:
            return await self._remove(upper_namespace)
        for unused in (self._unused_services, self._unused_slices):
            unused.needed(upper_namespace, self.context.lower_namespace(upper_namespace))
        settings = self.context.settings
        is_for_all = may_use_upper(settings.kubernetes_service, identities=settings.enable_serviceaccount)
        is_known = upper_namespace in self._addresses
        if not (
            is_for_all
            or is_known
            or self._existing(self._services, self._place(upper_namespace)["namespace"])
        ):
            return None  # ``found`` creates it if a pod's annotation asks for it
        if not await self.namespaces.is_usable(upper_namespace):
            return None  # when the lower namespace is created, the event requeues this key
        try:
            if not await self._ensure(upper_namespace, endpoint):
                return None
        except NameTakenError:
            return Result(requeue_after=_TAKEN_AGAIN)
        return Result(requeue_after=FRESH) if endpoint.may_change else None

    async def _ensure(self, upper_namespace: str, endpoint: Endpoint) -> str:
        """Ensure the Service and its EndpointSlice; return the Service's address, or empty if pods need no Service.

        Raises:
            NameTakenError: an unmanaged object has the name.
        """
        context = self.context
        if not endpoint.ips or not self.namespaces.allows_namespace(upper_namespace):
            return ""
        async with self._locks.setdefault(upper_namespace, asyncio.Lock()):
            place = self._place(upper_namespace)
            slice_body = api_server.endpoint_slice(
                context.cluster_id, **place, ips=endpoint.ips, port=endpoint.port
            )
            service = self._existing(self._services, place["namespace"])
            if service is None and not endpoint.needs_service and upper_namespace not in self._addresses:
                return ""
            body = api_server.service(context.cluster_id, **place)
            if service is None:
                known = self._addresses.get(upper_namespace) or self._used(place, endpoint)
                with_ip = api_server.service(context.cluster_id, **place, ip=known)
                try:
                    service = await self._created(resources.SERVICES, with_ip)
                except Invalid:
                    if not known:
                        raise
                    # Another Service has the address now.
                    self._addresses.pop(upper_namespace, None)
                    service = await self._created(resources.SERVICES, body)
            if service is None:
                raise NameTakenError("Service", self._name(upper_namespace))
            await self._repair(resources.SERVICES, service, body, upper_namespace)
            await self._ensure_slice(slice_body, place)
            self._addresses[upper_namespace] = address = api_server.address(service.spec or {}, endpoint.ips)
            return address

    async def _ensure_slice(self, body: Mapping[str, Any], place: Mapping[str, str]) -> None:
        found = self._existing(self._slices, place["namespace"])
        if found is not None and (found.to_dict().get("addressType") != body["addressType"]):
            await delete_only(self.context.lower, resources.ENDPOINT_SLICES, found)
            found = None
        if found is None:
            found = await self._created(resources.ENDPOINT_SLICES, body)
        if found is None:
            raise NameTakenError("EndpointSlice", f"{place['namespace']}/{body['metadata']['name']}")
        await self._repair(resources.ENDPOINT_SLICES, found, body, place["upper_namespace"])

    async def _repair(
        self, resource: Resource, found: Object, body: Mapping[str, Any], upper_namespace: str
    ) -> None:
        """Restore an object that was changed, or whose desired content has; pause if it is changed again and again."""
        if not (patch := api_server.repair(found.to_dict(), body)):
            return
        if wait := self._repairs.wait(f"{resource.plural} {upper_namespace}", body):
            self.controller.queue.add_after(upper_namespace, wait)
        else:
            await patch_only(self.context.lower, resource, found, patch)

    def _place(self, upper_namespace: str) -> dict[str, str]:
        return {
            "namespace": self.context.lower_namespace(upper_namespace),
            "upper_namespace": upper_namespace,
        }

    def _existing(self, informer: Informer, namespace: str) -> Object | None:
        found = informer.store.get(f"{namespace}/{api_server.name_of(self.context.cluster_id)}")
        return found if found is not None and api_server.is_ours(found, self.context.cluster_id) else None

    def _used(self, place: Mapping[str, str], endpoint: Endpoint) -> str:
        """Return the address of a former Service in the hosts files of running pods; empty: they have none."""
        for pod in self.caches.pods.lower.store.by_index(
            INDEX_PLACE, f"{place['namespace']}/{place['upper_namespace']}"
        ):
            upper = self.caches.pods.upper_pod(pod.labels.get(names.LABEL_UPPER_UID, ""))
            # A user who gives the name another address must not choose that of the Service.
            if upper is not None and not api_server.alias(upper.spec or {}):
                ip = api_server.alias(pod.spec or {})
                if ip and ip not in endpoint.ips:
                    return ip
        return ""

    async def _created(self, resource: Resource, body: Mapping[str, Any]) -> Object | None:
        """Create an object; return it, or the one of ours that exists. None: an unmanaged object has its name."""
        metadata = body["metadata"]
        existing = await self.namespaces.create_inside(resource, body)
        if existing is None:
            found = await self.context.lower.get(resource, metadata["name"], namespace=metadata["namespace"])
            existing = from_dict(found)
        return existing if api_server.is_ours(existing, self.context.cluster_id) else None

    async def _remove(self, upper_namespace: str) -> Result | None:
        """Delete the Service of a namespace without pods after a grace period, unless other processes have pods there."""
        place = self._place(upper_namespace)
        found = self._existing(self._services, place["namespace"])
        endpoints = self._existing(self._slices, place["namespace"])
        if found is None and endpoints is None:
            self._addresses.pop(upper_namespace, None)
            self._locks.pop(upper_namespace, None)
            self._failures.pop(upper_namespace, None)
            for resource in (resources.SERVICES, resources.ENDPOINT_SLICES):
                self._repairs.forget(f"{resource.plural} {upper_namespace}")
            if upper_namespace not in self.caches.upper_namespaces.store:
                self._unused_services.forget(upper_namespace)
                self._unused_slices.forget(upper_namespace)
            return None
        # Both decide now, so that one that is recreated later is known as that.
        removable = [
            (resource, one)
            for resource, one, unused in (
                (resources.SERVICES, found, self._unused_services),
                (resources.ENDPOINT_SLICES, endpoints, self._unused_slices),
            )
            if one is not None and unused.may_remove(upper_namespace, one)
        ]
        if not removable:
            return None
        if left := self._users.grace(upper_namespace):
            return Result(requeue_after=left)
        if self.caches.pods.are_in(place["namespace"]) or await have_pods_in(
            self.context, place["namespace"]
        ):
            return Result(requeue_after=GRACE)
        for resource, one in removable:
            await delete_only(self.context.lower, resource, one)
        return None


FRESH = 60.0
"""Seconds for which an endpoint is used before its name is resolved again."""
"""Seconds for each step. The first pod waits until all steps are done."""
_ADVICE = (
    "set kubernetesServiceURL to a URL of the upper API server that pods of the lower clusters can reach"
)


@dataclass(eq=False, repr=False)
class UpperEndpoint:
    """Keeps the ``Endpoint`` of the upper API server."""

    upper: Client
    url: str
    """``kubernetesServiceURL``; empty: derived from the URL that this process uses."""
    _found: Endpoint | None = None
    _until: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self) -> Endpoint:
        """Return the endpoint, at most a minute old. Errors are in the endpoint."""
        async with self._lock:
            now = event_loop.now()
            if self._found is None or now >= self._until:
                self._found = await find(self.upper, self.url)
                self._until = now + FRESH
            return self._found


async def find(upper: Client, url: str = "") -> Endpoint:
    """Return where pods of lower clusters reach the upper API server.

    Without a URL it is the URL of the client, unless that leads elsewhere from another machine or cluster. Then it is an
    address that the API server advertises in EndpointSlice ``default/kubernetes``.

    Args:
        upper: client of the upper cluster.
        url: ``kubernetesServiceURL``.
    """
    host, port = api_server.host_and_port(url or upper.config.server)
    if url and api_server.is_local(host):
        text = f"Pods cannot reach kubernetesServiceURL {url}, which is valid only on one machine: {_ADVICE}"
        return Endpoint(host, port, problem=text)
    if not url and (why := await _unusable(upper, host)):
        with contextlib.suppress(ApiError, ConfigError):
            if (advertised := await _advertised(upper)) is not None:
                return await _verified(upper, advertised)
        text = f"Pods cannot reach the upper API server at {upper.config.server}, because {why}: {_ADVICE}"
        return Endpoint("", 0, problem=text)
    return await _verified(upper, Endpoint(host, port, ips=await _resolved(host)))


async def _unusable(upper: Client, host: str) -> str:
    """Return why the client's URL cannot be used from lower clusters; empty: no reason is known."""
    if api_server.is_local(host):
        return "its address is valid only on the machine of the virtual node"
    if split_url(upper.config.server).path.strip("/"):
        return "it has a path, which in-cluster clients cannot use"
    cluster_ips: Sequence[str] = ()
    with contextlib.suppress(ApiError, ConfigError):
        service = await find_listed(upper, resources.SERVICES, SERVICE[1], namespace=SERVICE[0])
        cluster_ips = upper_addresses({"spec": service.spec or {}}) if service is not None else ()
    if upper.config.source == "in-cluster" or api_server.is_cluster_internal(host, cluster_ips):
        return "it is an address of a Service in the upper cluster"
    return ""


async def _advertised(upper: Client) -> Endpoint | None:
    """Return the addresses of the upper API servers from their EndpointSlice; None: it has none that others can use."""
    found = await find_listed(upper, resources.ENDPOINT_SLICES, SERVICE[1], namespace=SERVICE[0])
    body = {} if found is None else found.to_dict()
    ports = [int(port["port"]) for port in body.get("ports") or () if port.get("port")]
    addresses = [
        address
        for endpoint in body.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
        if not api_server.is_local(address)
    ]
    return Endpoint(addresses[0], ports[0], ips=addresses) if ports and addresses else None


async def _resolved(host: str) -> Sequence[str]:
    """Return the IP addresses of a host, sorted: IPv4, or IPv6 if there are no others; empty: it has none."""
    if api_server.is_ip(host):
        return [host]
    try:
        async with asyncio.timeout(_PATIENCE):
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, TimeoutError, UnicodeError):
        return ()
    ips = sorted({str(one[4][0]) for one in found})
    return [ip for ip in ips if ":" not in ip] or ips


async def _verified(upper: Client, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with the result of TLS handshakes as pods make them; if we cannot connect, nothing is known."""
    try:
        # Pods trust only the CA in this ConfigMap.
        found = await upper.get(resources.CONFIG_MAPS, ROOT_CA, namespace=SERVICE[0])
        authority = str((found.get("data") or {}).get("ca.crt") or "").encode()
        context = TlsMaterial(source=ROOT_CA, authority=authority).context()
    except (ApiError, ConfigError, NotFound):
        return endpoint
    refusal = await _refusal(context, endpoint, endpoint.host)
    if not refusal:
        return endpoint
    if endpoint.ip and not await _refusal(context, endpoint, NAME):
        return replace(endpoint, uses_name=True)
    text = (
        f"The certificate of the upper API server at {endpoint.host}:{endpoint.port} is refused with the CA that pods get "
        f"({refusal}): set kubernetesServiceURL to a host in the certificate"
    )
    return replace(endpoint, problem=text)


async def _refusal(context: ssl.SSLContext, endpoint: Endpoint, name: str) -> str:
    """Return why the certificate of an endpoint is not valid for a name; empty: it is, or there is no connection."""
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(
                endpoint.ip or endpoint.host, endpoint.port, ssl=context, server_hostname=name
            )
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, TimeoutError, UnicodeError, ValueError):
        return ""
    writer.transport.abort()
    return ""
