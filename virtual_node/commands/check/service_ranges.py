"""Checks whether Services can have the upper cluster's addresses in a lower one (``services.clusterIP: same``).

The rights of the virtual node suffice. ServiceCIDR objects are read if that is allowed; otherwise dry-run creates
of Services, which change nothing, find the ranges.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import BadRequest, ConfigError, Forbidden, Invalid, NotFound
from controller_runtime.objects import Object
from virtual_node.commands.common import connect
from virtual_node.config.types import Config
from virtual_node.translate.services import services

Verdict = tuple[bool, str, str]
"""Whether the check passes, what was found, and the next step."""
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


async def check(config: Config, patience: float) -> dict[str, Verdict]:
    """Return verdicts by name of lower clusters with ``services.clusterIP: same``, if they and the upper one answer.

    Args:
        config: the clusters.
        patience: seconds to wait for each response.
    """
    asked = [one for one in config.clusters if one.services.cluster_ip == "same"]
    found: dict[str, Verdict] = {}
    if not asked:
        return found
    opened = partial(connect.by_file, agent="virtual-node-check", timeout=patience)
    with contextlib.suppress(ConfigError):
        async with opened(config.kubeconfig, server=config.server, cluster="upper", in_cluster=True) as upper:
            wanted = _ends(await read(upper))
        for cluster in asked:
            with contextlib.suppress(ConfigError):
                async with opened(
                    cluster.kubeconfig, context=cluster.context, server=cluster.server, cluster=cluster.name
                ) as lower:
                    own = await _service_cidrs(lower)
                    fits = {
                        one: _all([await _fits(lower, address, own) for address in ends])
                        for one, ends in wanted.items()
                    }
                    found[cluster.name] = verdict(fits, own or await read(lower))
    return found


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
    used = [address for one in page.items for address in services.upper_addresses({"spec": one.spec or {}})]
    used.sort(key=lambda text: (len(packed := ipaddress.ip_address(text).packed), packed))
    return list(dict.fromkeys([*used[:1], *used[-1:]]))


def verdict(fits: Mapping[str, bool | None], own: Sequence[str]) -> Verdict:
    """Return whether ``same`` works, what was found, and what to do next.

    Args:
        fits: for each range of the upper cluster, whether the lower cluster can assign its addresses; None:
            unknown.
        own: the lower cluster's ranges.
    """
    if missing := [one for one, fit in fits.items() if fit is False]:
        outside = ", ".join(missing[:3])
        what = f"{', '.join(own[:3]) or 'its range'} does not contain {outside} of the upper cluster"
        step = (
            f"give the lower cluster a Service range with {outside}: a ServiceCIDR object (Kubernetes 1.33 or newer), or "
            "--service-cluster-ip-range of its kube-apiserver; or set services.clusterIP: own"
        )
        return False, what, step
    if not fits or None in fits.values():
        return True, "unknown: a cluster does not report its range", ""
    return True, f"contains {', '.join([*fits][:3])}", ""


def _ends(ranges: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each range, the first and the last address that a Service can have."""
    found: dict[str, list[str]] = {}
    for one in ranges:
        network = ipaddress.ip_network(one)
        edge = 1 if network.num_addresses > 2 else 0
        found[one] = [str(network[place]) for place in dict.fromkeys((edge, -1 - edge))]
    return found


def _all(fits: Sequence[bool | None]) -> bool | None:
    return None if None in fits else all(fits)


async def _service_cidrs(client: Client) -> list[str]:
    """Return the CIDRs of the ServiceCIDR objects that are ready; empty: the server does not show such objects."""
    try:
        page = await client.list(resources.SERVICE_CIDRS)
    except (Forbidden, NotFound):
        return []
    return [cidr for one in page.items if _is_ready(one) for cidr in (one.spec or {}).get("cidrs") or ()]


def _is_ready(service_cidr: Object) -> bool:
    """Report whether the server assigns addresses of the range; without a Ready condition it does."""
    conditions = (service_cidr.status or {}).get("conditions") or ()
    return all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready")


async def _fits(client: Client, address: str, own: Sequence[str]) -> bool | None:
    """Return whether a cluster can give a Service this address. None: unknown.

    Args:
        client: the cluster.
        address: an IP address.
        own: the cluster's ranges as CIDRs; empty: dry runs decide.
    """
    if own:
        return any(ipaddress.ip_address(address) in ipaddress.ip_network(one) for one in own)
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
