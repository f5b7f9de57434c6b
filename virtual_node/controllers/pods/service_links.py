"""Service variables and names for new containers: those of the upper Services, with addresses that the pod can reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from clusterset.model.pod.conditions import CONTAINER_KINDS
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from controller_runtime.objects import Object
from controller_runtime.util import event_loop
from controller_runtime.util.event_loop import run_apart
from controller_runtime.util.rate_limiter import Pace
from virtual_node.controllers.base.caches import INDEX_NAMESPACE, ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.controllers.copies.single_objects import ObjectKey
from virtual_node.controllers.pods.api_services import ApiServices
from virtual_node.translate.pods import api_server, service_environment
from virtual_node.translate.pods.api_server import Assignment, Endpoint
from virtual_node.translate.services import cluster_ip

_AGAIN = 3600.0
"""Seconds until another pod of an upper namespace gets an event about its API server."""
_BYTES_PER_STEP = 16
"""Bytes of a Service's spec that are decoded in the time of one step of a budget."""
_ANY = Endpoint("any", 0)
"""Stands for the endpoint while it is not known whether a pod needs it."""


@dataclass(eq=False, repr=False)
class ServiceLinks:
    """Adds service variables to the containers of lower pods, and the names of the upper API server."""

    context: ClusterContext
    caches: ClusterCaches
    dependencies: DependencyController
    """Knows the ConfigMaps and Secrets that pods reference."""
    settled: Callable[[str], Awaitable[None]]
    """Waits a limited time until the Services of an upper namespace have lower copies."""

    api_services: ApiServices
    """The lower Services of the upper API server."""

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._events: Pace[tuple[str, str]] = Pace(burst=1, qps=1 / _AGAIN)

    async def add(
        self,
        body: dict[str, Any],
        upper_pod: Mapping[str, Any],
        budget: TranslationBudget,
    ) -> None:
        """Add the Service variables to a lower pod.

        Args:
            body: the lower pod that is about to be created.
            upper_pod: its upper pod.
            budget: of the pod.

        Raises:
            TooLargeError: the variables exceed the budget.
        """
        if _wants_links(upper_pod):
            # Otherwise the pod would get variables of the lower cluster's own Services in that namespace.
            body["spec"]["enableServiceLinks"] = False
        assigned = await self._assignment(upper_pod)
        if assigned.upper is not None:
            api_server.with_host_aliases(
                body["spec"],
                assigned.upper,
                upper_pod["metadata"]["namespace"],
                domain=self.context.settings.cluster_domain,
            )
        await self._add(body["spec"], upper_pod, assigned.upper, budget)
        self._report(upper_pod, assigned)

    async def add_to_containers(
        self,
        spec: dict[str, Any],
        upper_pod: Mapping[str, Any],
        budget: TranslationBudget,
    ) -> None:
        """Add the variables to containers of a lower pod, in place.

        Args:
            spec: lists of containers by kind: the pod's spec, or the debug containers to add to a running
                pod.
            upper_pod: as in ``add``.
            budget: as in ``add``.

        Raises:
            TooLargeError: the variables exceed the budget; the spec is unchanged.
        """
        await self._add(spec, upper_pod, (await self._assignment(upper_pod)).upper, budget)

    async def _add(
        self,
        spec: dict[str, Any],
        upper_pod: Mapping[str, Any],
        endpoint: Endpoint | None,
        budget: TranslationBudget,
    ) -> None:
        metadata = upper_pod["metadata"]
        namespace = metadata["namespace"]
        links, master = _wants_links(upper_pod), endpoint.master if endpoint is not None else None
        services = self._services(namespace) if links else []
        if not services and master is None:
            return

        def add() -> None:
            variables = service_environment.service_variables(
                (
                    {"metadata": {"namespace": one.namespace, "name": one.name}, "spec": one.spec}
                    for one in services
                ),
                namespace=namespace,
                links=links,
                address=self._address,
                master=master,
                digits=service_environment.allows_digits(self.context.lower_version),
                budget=budget,
            )
            service_environment.add_variables(
                spec,
                variables,
                lambda kind, name: self.dependencies.data_keys(ObjectKey(kind, namespace, name)),
                budget,
            )

        size = sum(service.spec_size for service in services)
        budget.work(size // _BYTES_PER_STEP, "All Services of the namespace", service_environment.ADVICE)
        containers = [one for kind in CONTAINER_KINDS for one in spec.get(kind) or ()]
        read = (
            self.dependencies.size(metadata["uid"])
            if any("envFrom" in container for container in containers)
            else 0
        )
        await run_apart(add, size=size * len(containers) + read)

    def version(self, namespace: str) -> int:
        """Return a hash of the Services whose variables a pod of an upper namespace gets."""
        return hash(tuple((service.uid, service.resource_version) for service in self._services(namespace)))

    def _services(self, namespace: str) -> list[Object]:
        services = self.caches.upper_services.store.by_index(INDEX_NAMESPACE, namespace)
        return sorted(services, key=lambda service: service.name)

    def _address(self, service: Mapping[str, Any]) -> str:
        """Return the address of the Service's copy, otherwise the Service's own; empty: it has none."""
        upper_ip = cluster_ip(service["spec"])
        if not upper_ip:
            return ""
        metadata = service["metadata"]
        namespace = self.context.lower_namespace(metadata["namespace"])
        copy = self.caches.lower_services.store.get(f"{namespace}/{metadata['name']}")
        return (cluster_ip(copy.spec or {}) if copy is not None else "") or upper_ip

    async def _assignment(self, upper_pod: Mapping[str, Any]) -> Assignment:
        settings = self.context.settings
        choose = partial(
            api_server.assignment,
            upper_pod,
            setting=settings.kubernetes_service,
            identities=settings.enable_serviceaccount,
        )
        if choose(endpoint=_ANY).upper is None:
            return choose(endpoint=_ANY)
        return choose(endpoint=await self.api_services.found(upper_pod["metadata"]["namespace"]))

    def _report(self, upper_pod: Mapping[str, Any], assigned: Assignment) -> None:
        """Write an event about a pod that cannot use the Kubernetes API, for one pod of a namespace per reason and hour."""
        key = (upper_pod["metadata"]["namespace"], assigned.reason)
        if assigned.problem and not self._events.wait(key, now=event_loop.now()):
            self.context.warn(upper_pod, assigned.reason, assigned.problem)


def _wants_links(upper_pod: Mapping[str, Any]) -> bool:
    return upper_pod["spec"].get("enableServiceLinks", True) is not False
