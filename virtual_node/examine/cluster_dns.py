"""Reads a cluster's DNS domain, its DNS server, and its name servers, with the rights of a virtual node."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any

from controller_runtime import resources
from controller_runtime.client.verbs import Verbs, find
from controller_runtime.errors import ApiError, Forbidden
from controller_runtime.resources import Resource
from virtual_node.config.file import DOMAIN
from virtual_node.rights.name_server import COMPONENT, COREFILE, Installed
from virtual_node.translate.services.services import cluster_ip

_NODES = 3
"""Number of nodes to ask, because a kubelet may not answer."""
_ZONE = re.compile(r"^[ \t]*kubernetes[ \t]+([-a-z0-9.]+)", re.MULTILINE)
"""The first zone of CoreDNS's plugin ``kubernetes``."""


@dataclass(frozen=True, slots=True)
class ClusterDNS:
    """How pods of a cluster resolve names."""

    domain: str = ""
    """DNS domain of the cluster; empty: unknown."""
    server: str = ""
    """Address of the cluster's DNS server; empty: unknown."""


async def read(client: Verbs) -> ClusterDNS:
    """Return a cluster's DNS settings, from Service ``kube-dns``, a kubelet's configuration or the Corefile of CoreDNS.

    Raises:
        ApiError: the cluster does not answer.
    """
    service = await _system(client, resources.SERVICES, "kube-dns")
    kubelet = await _kubelet(client)
    domain, servers = kubelet.get("clusterDomain") or "", kubelet.get("clusterDNS") or [""]
    if not domain:
        config = await _system(client, resources.CONFIG_MAPS, "coredns")
        zone = _ZONE.search(str((config.get("data") or {}).get("Corefile") or ""))
        domain = zone[1] if zone else ""
    domain = str(domain).rstrip(".")
    address = cluster_ip(service.get("spec") or {}) or servers[0]
    return ClusterDNS(domain if DOMAIN.fullmatch(domain) else "", str(address))


async def name_servers(lower: Verbs) -> list[Installed]:
    """Return the name servers that ``lower-cluster dns`` created in a lower cluster.

    Raises:
        ApiError: the cluster does not answer, or the caller may not list Services or EndpointSlices.
    """
    selector = ",".join(f"{key}={value}" for key, value in COMPONENT.items())
    found = []
    for service in (await lower.list(resources.SERVICES, label_selector=selector)).items:
        slices = await lower.list(
            resources.ENDPOINT_SLICES,
            namespace=service.namespace,
            label_selector=f"kubernetes.io/service-name={service.name}",
        )
        endpoints = [
            endpoint for piece in slices.items for endpoint in piece.to_dict().get("endpoints") or ()
        ]
        ready = sum((each.get("conditions") or {}).get("ready") is not False for each in endpoints)
        config: dict[str, Any] = {}
        with contextlib.suppress(Forbidden):
            where = service.namespace
            config = await find(lower, resources.CONFIG_MAPS, service.name, namespace=where) or {}
        text = str((config.get("data") or {}).get(COREFILE) or "")
        found.append(Installed(service.key, str((service.spec or {}).get("clusterIP")), ready, text))
    return found


async def _system(client: Verbs, resource: Resource, name: str) -> dict[str, Any]:
    """Return an object of ``kube-system``; empty: it does not exist, or the caller may not read it."""
    with contextlib.suppress(Forbidden):
        return await find(client, resource, name, namespace="kube-system") or {}
    return {}


async def _kubelet(client: Verbs) -> dict[str, Any]:
    """Return the configuration of the first kubelet that shows it; empty: none does."""
    try:
        nodes = await client.read(resources.NODES.path(), params={"limit": str(_NODES)}, verb="LIST")
    except Forbidden:
        return {}
    for node in nodes.get("items") or ():
        path = resources.NODES.path(name=node["metadata"]["name"], subresource="proxy")
        with contextlib.suppress(ApiError):
            found = (await client.read(f"{path}/configz")).get("kubeletconfig")
            if isinstance(found, dict):
                return found
    return {}
