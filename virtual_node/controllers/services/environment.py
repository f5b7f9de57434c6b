"""Service variables for new containers: those of the upper Services, with addresses that the pod can reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from controller_runtime.api import names
from controller_runtime.objects import Object
from virtual_node.config.types import KUBERNETES_SERVICE_UPPER
from virtual_node.controllers.base.caches import INDEX_NAMESPACE, ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.object_key import ObjectKey
from virtual_node.translate.pods import service_environment

Defined = Mapping[ObjectKey, Collection[str]]
_CONTAINER_KINDS = ("initContainers", "containers", "ephemeralContainers")


@dataclass(eq=False, repr=False)
class ServiceLinks:
    """Adds service variables to the containers of lower pods."""

    context: ClusterContext
    caches: ClusterCaches
    settled: Callable[[str], Awaitable[None]]
    """Waits a limited time until the Services of an upper namespace have lower copies."""

    def add(
        self,
        body: dict[str, Any],
        upper_pod: Mapping[str, Any],
        env_from: Callable[[], Defined],
    ) -> None:
        """Add the Service variables to a lower pod.

        Args:
            body: the lower pod that is about to be created.
            upper_pod: its upper pod.
            env_from: returns the keys of the ConfigMaps and Secrets that the pod references; called only when
                needed.
        """
        if _wants_links(upper_pod):
            # Otherwise the pod would get variables of the lower cluster's own Services in that namespace.
            body["spec"]["enableServiceLinks"] = False
        self.add_to_containers(body["spec"], upper_pod, env_from)

    def add_to_containers(
        self,
        spec: dict[str, Any],
        upper_pod: Mapping[str, Any],
        env_from: Callable[[], Defined],
    ) -> None:
        """Add the variables to containers of a lower pod, in place.

        Args:
            spec: lists of containers by kind: the pod's spec, or the debug containers to add to a running
                pod.
            upper_pod: as in ``add``.
            env_from: as in ``add``.
        """
        metadata = upper_pod["metadata"]
        namespace = metadata["namespace"]
        services = [
            {"metadata": {"namespace": service.namespace, "name": service.name}, "spec": service.spec or {}}
            for service in self.caches.upper_services.store.by_index(INDEX_NAMESPACE, namespace)
        ]
        variables = service_environment.service_variables(
            services,
            namespace=namespace,
            links=_wants_links(upper_pod),
            address=self._address,
            master=self._master(metadata.get("annotations") or {}),
        )
        if not variables:
            return
        for kind in _CONTAINER_KINDS:
            if kind in spec:
                spec[kind] = [
                    service_environment.with_variables(
                        container,
                        variables,
                        _names(container, namespace, env_from()) if container.get("envFrom") else (),
                    )
                    for container in spec[kind]
                ]

    def _address(self, service: Mapping[str, Any]) -> str:
        """Return the address of the Service's copy, otherwise the Service's own; empty: it has none."""
        upper_ip = _cluster_ip(service["spec"])
        if not upper_ip:
            return ""
        metadata = service["metadata"]
        namespace = self.context.lower_namespace(metadata["namespace"])
        copy = self.caches.lower_services.store.get(f"{namespace}/{metadata['name']}")
        return (_cluster_ip(copy.spec or {}) if copy is not None else "") or upper_ip

    def _master(self, annotations: Mapping[str, str]) -> tuple[str, int] | None:
        """Return host and port of the upper API server if pod or configuration selects it; None: neither does."""
        wanted = (
            annotations.get(names.ANNOTATION_KUBERNETES_SERVICE) or self.context.settings.kubernetes_service
        )
        if wanted.lower() != KUBERNETES_SERVICE_UPPER.lower():
            return None
        url = urlsplit(self.context.settings.kubernetes_service_url or self.context.upper.config.server)
        return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def has_address(service: Object, copy: Object | None) -> bool:
    """Report whether an upper Service has a copy, with an address if the upper Service has one."""
    if copy is None:
        return False
    return bool(_cluster_ip(copy.spec or {})) or not _cluster_ip(service.spec or {})


def _cluster_ip(spec: Mapping[str, Any]) -> str:
    """Return a Service's address; empty: it has none (headless, ExternalName)."""
    address = str(spec.get("clusterIP") or "")
    return "" if address == "None" else address


def _wants_links(upper_pod: Mapping[str, Any]) -> bool:
    return upper_pod["spec"].get("enableServiceLinks", True) is not False


def _names(container: Mapping[str, Any], namespace: str, env_from: Defined) -> set[str]:
    """Return the names of the variables that a container's ``envFrom`` sources define."""
    found: set[str] = set()
    for source in container.get("envFrom") or ():
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if reference := source.get(field):
                keys = env_from.get(ObjectKey(kind, namespace, reference.get("name", "")), ())
                found |= {f"{source.get('prefix') or ''}{key}" for key in keys}
    return found
