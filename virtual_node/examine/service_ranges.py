"""Reads whether Services can have the upper cluster's addresses in a lower one (``services.clusterIP: same``).

The rights of the virtual node suffice. ServiceCIDR objects are read if that is allowed; otherwise dry-run creates
of Services, which change nothing, find the ranges.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import BadRequest, Forbidden, Invalid, NotFound
from controller_runtime.objects import Object
from virtual_node.examine.path import ServiceRanges
from virtual_node.translate.services import services

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
    own = await _service_cidrs(lower)
    fits = {
        each: _all([await _fits(lower, address, own) for address in ends])
        for each, ends in _ends(wanted).items()
    }
    return ServiceRanges(fits, own or await read(lower))


async def read(client: Client) -> list[str]:
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


def _ends(ranges: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each range, the first and the last address that a Service can have."""
    found: dict[str, list[str]] = {}
    for each in ranges:
        network = ipaddress.ip_network(each)
        edge = 1 if network.num_addresses > 2 else 0
        found[each] = [str(network[place]) for place in dict.fromkeys((edge, -1 - edge))]
    return found


def _all(fits: Sequence[bool | None]) -> bool | None:
    return None if None in fits else all(fits)


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
    """Return whether a cluster can give a Service this address. None: unknown.

    Args:
        client: the cluster.
        address: an IP address.
        own: the cluster's ranges as CIDRs; empty: dry runs decide.
    """
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
        cause = services.address_refusal(error.message)
        if cause == "already allocated":
            return ""
        return error.message if cause else None
    except (BadRequest, Forbidden):  # Another reason, such as admission, so the address is not judged.
        return None
    return ""
