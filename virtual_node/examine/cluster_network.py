"""Reads a cluster's DNS domain, DNS server, name servers and Service ranges with the rights of a virtual node.

Whether Services can have the upper cluster's addresses (``services.clusterIP: same``) is read from ServiceCIDR objects if
that is allowed; otherwise dry-run creates of Services, which change nothing, find the ranges.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.verbs import Verbs, find
from controller_runtime.errors import ApiError, BadRequest, Forbidden, Invalid, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.config.file import DOMAIN
from virtual_node.examine.facts import ServiceRanges
from virtual_node.examine.objects import ready_endpoints
from virtual_node.rights.name_server import COMPONENT, COREFILE, Installed
from virtual_node.translate import services
from virtual_node.translate.services import cluster_ip

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


async def read_dns(client: Verbs) -> ClusterDNS:
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
        ready = ready_endpoints(piece.to_dict() for piece in slices.items)
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


_OUTSIDE = ("255.255.255.255", "ff02::1")
"""Addresses outside every Service range.

A server without ServiceCIDR objects names its range when it refuses them.
"""
_ATTEMPTS = 40
"""Maximum number of dry runs for one address.

A server with several ranges judges each dry run by one of them, chosen at random (MetaAllocator.DryRun of
Kubernetes 1.34), so a refusal alone does not prove that no range contains the address. The chance that it
chooses the second of two ranges is at least 1/8, so the last refusal is wrong in less than 1 of 200 checks.
"""
_VALID = re.compile(r"range of valid IPs is ([0-9a-fA-F.:/]+)")


async def compare(wanted: Sequence[str], lower: Client) -> ServiceRanges:
    """Return whether a lower cluster can give Services the addresses of these ranges of the upper cluster.

    Raises:
        ApiError: the cluster does not answer.
    """
    own, fits = await _service_cidrs(lower), dict[str, bool | None]()
    for each in wanted:
        network = ipaddress.ip_network(each)
        # The first and the last address that a Service can have.
        edge = 1 if network.num_addresses > 2 else 0
        ends = [str(network[place]) for place in dict.fromkeys((edge, -1 - edge))]
        found = [await _fits(lower, address, own) for address in ends]
        fits[each] = None if None in found else all(found)
    return ServiceRanges(fits, own or await read_ranges(lower))


async def read_ranges(client: Client) -> list[str]:
    """Return a cluster's Service ranges as CIDRs; if they cannot be read, the first and last address in use.

    Raises:
        ApiError: the cluster does not answer.
    """
    if found := await _service_cidrs(client):
        return found
    refusals = [await _refusal(client, address) for address in _OUTSIDE]
    if found := [match[1] for refusal in refusals if (match := _VALID.search(refusal or ""))]:
        return found
    try:
        page = await client.list(resources.SERVICES)
    except Forbidden:
        return []
    used = [address for each in page.items for address in services.upper_addresses({"spec": each.spec or {}})]
    used.sort(key=lambda text: (len(packed := ipaddress.ip_address(text).packed), packed))
    return list(dict.fromkeys([*used[:1], *used[-1:]]))


async def _service_cidrs(client: Client) -> list[str]:
    """Return the CIDRs of the ServiceCIDR objects that are ready; empty: the server does not show such objects."""
    try:
        page = await client.list(resources.SERVICE_CIDRS)
    except (Forbidden, NotFound):
        return []
    return [cidr for each in page.items if _is_ready(each) for cidr in (each.spec or {}).get("cidrs") or ()]


def _is_ready(service_cidr: Object) -> bool:
    """Report whether the server assigns addresses of the range; without a Ready condition it does."""
    conditions = (service_cidr.status or {}).get("conditions") or ()
    return all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready")


async def _fits(client: Client, address: str, own: Sequence[str]) -> bool | None:
    """Return whether a cluster with these CIDRs can give a Service this address; without CIDRs dry runs decide. None: unknown."""
    if own:
        return any(ipaddress.ip_address(address) in ipaddress.ip_network(each) for each in own)
    for _ in range(_ATTEMPTS):
        if not (refusal := await _refusal(client, address)):
            return None if refusal is None else True
    return False


async def _refusal(client: Client, address: str) -> str | None:
    """Return why a cluster cannot give a Service this address. Empty: it can. None: unknown."""
    name = f"virtual-node-check-{secrets.token_hex(4)}"
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]},
    }
    try:
        await client.create(resources.SERVICES, body, params={"dryRun": "All"})
    except Invalid as error:
        cause = services.refusal(error.message)
        if cause == "already allocated":
            return ""
        return error.message if cause else None
    except (BadRequest, Forbidden):  # Another reason, such as admission, so the address is not judged.
        return None
    return ""
