"""Decides which pod IPs the controller connects to. The writer of a pod status chooses its IP."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from controller_runtime.cache.informer import Informer
from swarm.program import Network
from swarm.slots import Pod

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
"""Metadata services of cloud providers outside of the link-local range: AWS, Google, Alibaba, Azure, Oracle."""


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """Checks pod IPs against the node of the pod.

    The kubelet of a real node reports the IPs of its pods. For a virtual node, the lower cluster reports them. It could
    name any address that the controller can reach, so only the ranges that the operator or the Node names are allowed.
    """

    nodes: Informer
    ranges: Sequence[Network] = ()
    """Ranges of the pods on virtual nodes."""

    def refusal(self, pod: Pod) -> str:
        """Return why the controller does not connect to a pod; empty: it does."""
        node = self.nodes.store.get(pod.node)
        if node is None:
            return f"node {pod.node!r} does not exist"
        spec, status = node.spec or {}, node.status or {}
        if node.labels.get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL:
            # The address of the node may be any address: pods in the host network have it.
            own = {one.get("address") for one in status.get("addresses") or ()}
            return "" if is_pod_address(pod.ip) or pod.ip in own else f"{pod.ip!r} is no address of a pod"
        if not is_pod_address(pod.ip):
            return f"{pod.ip!r} is no address of a pod"
        address = _plain(pod.ip)
        if any(address in network for network in (*self.ranges, *_networks(spec.get("podCIDRs") or ()))):
            return ""
        return (
            f"{pod.ip} is on virtual node {pod.node} and not in --poll-cidrs of the controller. Let workers write Leases "
            "(httpPort: 0), or let the operator add the pod range of the lower cluster"
        )


def is_pod_address(ip: str) -> bool:
    """Report whether a pod can have this address.

    False for addresses that the API server's pod proxy refuses, and for the metadata services of cloud providers.
    """
    try:
        address = _plain(ip)
    except ValueError:
        return False
    return address not in _METADATA and not (
        address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    )


def _plain(ip: str) -> Address:
    address = ipaddress.ip_address(ip)
    return getattr(address, "ipv4_mapped", None) or address


def _networks(texts: Sequence[Any]) -> list[Network]:
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            continue  # an unknown notation allows nothing
    return found
