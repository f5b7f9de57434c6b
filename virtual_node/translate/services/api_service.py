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
from virtual_node.translate.services import services
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


def is_ours(found: Object, cluster_id: str) -> bool:
    """Report whether a lower object is such a Service or EndpointSlice, also if only our label with the cluster is left.

    A copy of an upper object with that name has another label, with the uid of the upper object.
    """
    return (
        found.name == name_of(cluster_id)
        and ownership.is_owned(found.labels, cluster_id)
        and names.LABEL_UPPER_UID not in found.labels
    )


def service(cluster_id: str, *, namespace: str, upper_namespace: str, ip: str = "") -> dict[str, Any]:
    """Return the Service; ``ip``: the address to request, which running pods use; empty: any."""
    metadata = _metadata(cluster_id, namespace, upper_namespace)
    spec = {
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": PORT, "targetPort": PORT}],
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


def repair(current: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch that restores a Service or EndpointSlice; empty: nothing has changed.

    Labels and annotations that others added stay.
    """
    patch: dict[str, Any] = {}
    metadata = current["metadata"]
    for field in ("labels", "annotations"):
        has = metadata.get(field) or {}
        if missing := {
            key: value for key, value in desired["metadata"][field].items() if has.get(key) != value
        }:
            patch.setdefault("metadata", {})[field] = missing
    if desired["kind"] == "Service":
        return patch | services.changes(current, desired)
    if _endpoints(current) != _endpoints(desired):
        patch |= {field: desired[field] for field in ("endpoints", "ports")}
    return patch


def _endpoints(found: Mapping[str, Any]) -> object:
    """Return what counts of an EndpointSlice; the API server adds fields."""
    return (
        [
            (endpoint.get("addresses"), (endpoint.get("conditions") or {}).get("ready") is not False)
            for endpoint in found.get("endpoints") or ()
        ],
        [(port.get("name"), port.get("port")) for port in found.get("ports") or ()],
    )


def _metadata(cluster_id: str, namespace: str, upper_namespace: str) -> dict[str, Any]:
    return {
        "name": name_of(cluster_id),
        "namespace": namespace,
        "labels": {names.LABEL_UPPER_CLUSTER: cluster_id, names.LABEL_API_SERVER: "true"},
        "annotations": {names.ANNOTATION_UPPER_NAMESPACE: upper_namespace},
    }
