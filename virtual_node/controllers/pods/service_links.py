"""Service variables for new containers: those of the upper Services, with addresses that the pod can reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from clusterset.model import names
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from controller_runtime.objects import Object
from controller_runtime.util.responsive import run_apart
from virtual_node.config.types import KUBERNETES_SERVICE_UPPER
from virtual_node.controllers.base.caches import INDEX_NAMESPACE, ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.object_key import ObjectKey
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.translate.pods import service_environment
from virtual_node.translate.services.services import cluster_ip

_BYTES_PER_STEP = 16
"""Bytes of a Service's spec that are decoded in the time of one step of a budget."""


@dataclass(eq=False, repr=False)
class ServiceLinks:
    """Adds service variables to the containers of lower pods."""

    context: ClusterContext
    caches: ClusterCaches
    dependencies: DependencyController
    """Knows the ConfigMaps and Secrets that pods reference."""
    settled: Callable[[str], Awaitable[None]]
    """Waits a limited time until the Services of an upper namespace have lower copies."""

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
        await self.add_to_containers(body["spec"], upper_pod, budget)

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
        metadata = upper_pod["metadata"]
        namespace = metadata["namespace"]
        links, master = _wants_links(upper_pod), self._master(metadata.get("annotations") or {})
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
        containers = [one for kind in service_environment.CONTAINER_KINDS for one in spec.get(kind) or ()]
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

    def _master(self, annotations: Mapping[str, str]) -> tuple[str, int] | None:
        """Return host and port of the upper API server if pod or configuration selects it; None: neither does."""
        wanted = (
            annotations.get(names.ANNOTATION_KUBERNETES_SERVICE) or self.context.settings.kubernetes_service
        )
        if wanted.lower() != KUBERNETES_SERVICE_UPPER.lower():
            return None
        url = urlsplit(self.context.settings.kubernetes_service_url or self.context.upper.config.server)
        return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def _wants_links(upper_pod: Mapping[str, Any]) -> bool:
    return upper_pod["spec"].get("enableServiceLinks", True) is not False
