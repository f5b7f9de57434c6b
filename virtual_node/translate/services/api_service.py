"""The lower Service that leads pods to the upper API server at port 443, and its EndpointSlice.

Programs that use the name ``kubernetes.default.svc`` connect to port 443, but API servers often listen on another port.
Each lower namespace has a Service of its own, because the lower cluster's ``default/kubernetes`` is never changed, and
virtual-node has no other namespaces there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model import names
from controller_runtime.objects import Object
from virtual_node.translate.base import ownership
from virtual_node.translate.services.endpoints import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGED_BY
from virtual_node.translate.services.services import cluster_ip

PORT = 443
_PORT_NAME = "https"


def name_of(cluster_id: str) -> str:
    """Return the name of the Service and its EndpointSlice for an upper cluster."""
    return f"kubernetes-{hashlib.sha256(cluster_id.encode()).hexdigest()[:8]}"


def is_api_service(name: str, labels: Mapping[str, str]) -> bool:
    """Report whether a lower object with that name is such a Service or EndpointSlice, and not a copy."""
    cluster_id = labels.get(names.LABEL_UPPER_CLUSTER, "")
    return names.LABEL_API_SERVER in labels and bool(cluster_id) and name == name_of(cluster_id)


def is_ours(found: Object, cluster_id: str, upper_namespace: str) -> bool:
    """Report whether a lower object is the Service or EndpointSlice of an upper namespace."""
    return is_api_service(found.name, found.labels) and ownership.is_owned_by(
        found, cluster_id, upper_namespace
    )


def service(cluster_id: str, *, namespace: str, upper_namespace: str, ip: str = "") -> dict[str, Any]:
    """Return the Service; ``ip``: the address to request, which running pods use; empty: any."""
    metadata = _metadata(cluster_id, namespace, upper_namespace)
    spec = {
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": PORT}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {**spec, "clusterIP": ip} if ip else spec,
    }


def endpoint_slice(
    cluster_id: str, *, namespace: str, upper_namespace: str, ips: Sequence[str], port: int
) -> dict[str, Any]:
    """Return the EndpointSlice with the addresses of the upper API server, all of one IP family."""
    metadata = _metadata(cluster_id, namespace, upper_namespace)
    metadata["labels"] |= {LABEL_SERVICE: metadata["name"], LABEL_MANAGED_BY: MANAGED_BY}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv6" if ":" in ips[0] else "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}} for ip in ips],
        "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": port}],
    }


def address(spec: Mapping[str, Any], ips: Sequence[str]) -> str:
    """Return the address of the Service that leads to endpoints with these IP addresses; empty: it has none of their family."""
    if not (first := cluster_ip(spec)):
        return ""
    return next((ip for ip in spec.get("clusterIPs") or [first] if (":" in ip) == (":" in ips[0])), "")


def has_endpoints(current: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Report whether an EndpointSlice has the desired addresses and ports."""

    def content(one: Mapping[str, Any]) -> object:
        return (
            [endpoint.get("addresses") for endpoint in one.get("endpoints") or ()],
            [port.get("port") for port in one.get("ports") or ()],
        )

    return content(current) == content(desired)


def _metadata(cluster_id: str, namespace: str, upper_namespace: str) -> dict[str, Any]:
    return {
        "name": name_of(cluster_id),
        "namespace": namespace,
        "labels": {names.LABEL_UPPER_CLUSTER: cluster_id, names.LABEL_API_SERVER: "true"},
        "annotations": {names.ANNOTATION_UPPER_NAMESPACE: upper_namespace},
    }
