"""Endpoints of a Service in the lower cluster: EndpointSlices, or Endpoints for older clusters.

Pods have addresses of their own cluster. On a flat network the upper cluster's endpoints are therefore valid
in every cluster. Names of the node and the pod are translated if this lower cluster runs the pod. Otherwise
they are left out, as zones always are, because kube-proxy ignores an endpoint with a hint that is not valid
in its cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from clusterset.model.policy.config import MetadataRules
from virtual_node.translate.base.metadata import DEFAULT_RULES, object_patch
from virtual_node.translate.services.services import mirror_labels, mirrored_metadata

LABEL_SERVICE = "kubernetes.io/service-name"
LABEL_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY = "virtual-node.io"
"""Value of the managed-by label. Other controllers do not change slices of this manager.
https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#management"""
LABEL_SKIP_MIRROR = "endpointslice.kubernetes.io/skip-mirror"
_ENDPOINT_FIELDS = ("addresses", "conditions", "hostname")
_PORT_FIELDS = ("name", "protocol", "port", "appProtocol")
_HASH = 10
_LEGACY_FAMILIES = frozenset({"IPv4", "IPv6"})


@dataclass(frozen=True, slots=True)
class LowerPod:
    """The pod of this lower cluster that mirrors an upper pod."""

    namespace: str
    name: str
    uid: str
    node_name: str
    """The lower node; empty: not scheduled yet."""


FindPod = Callable[[str, str, str], LowerPod | None]
"""Returns the lower pod for namespace, name and uid (may be empty) of an upper pod; None: another lower
cluster or process runs the pod."""
Known = Mapping[tuple[str, str], LowerPod]
"""Lower pods by address and pod name. Two processes may share a lower cluster, and each knows only its own
pods. Each keeps what a copy contains about the pods of the other process. Otherwise they would undo each
other's writes."""
_NONE_KNOWN: Known = MappingProxyType({})


def slice_name(service: str, uid: str, cluster_id: str) -> str:
    """Return the name of the lower EndpointSlice for an upper one: deterministic, and unique."""
    digest = hashlib.sha256(f"{cluster_id}/{uid}".encode()).hexdigest()[:_HASH]
    return f"{service}-{digest}"


def known_pods(lower: Mapping[str, Any]) -> Known:
    """Return the pods that a lower EndpointSlice or Endpoints references."""
    pieces = [(address, one) for one in lower.get("endpoints") or () for address in one["addresses"]]
    for subset in lower.get("subsets") or ():
        for field in ("addresses", "notReadyAddresses"):
            pieces += [(one["ip"], one) for one in subset.get(field) or ()]
    return {
        (address, target["name"]): LowerPod(
            target.get("namespace", ""), target["name"], target.get("uid", ""), one.get("nodeName") or ""
        )
        for address, one in pieces
        if (target := one.get("targetRef")) and target.get("kind") == "Pod" and target.get("name")
    }


def lower_slice(
    upper: Mapping[str, Any],
    *,
    service: str,
    namespace: str,
    cluster_id: str,
    find_pod: FindPod,
    known: Known = _NONE_KNOWN,
    rules: MetadataRules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Return the lower EndpointSlice to create for an upper one.

    Args:
        upper: the upper slice.
        service: the Service's name, the same in both clusters.
        namespace: the lower namespace.
        cluster_id: the upper cluster's identity.
        find_pod: returns our lower pod for an upper pod.
        known: pods that the current lower slice references.
        rules: ``policy.metadata`` for the upper namespace.
    """
    metadata = upper["metadata"]
    labels = {
        LABEL_SERVICE: service,
        LABEL_MANAGED_BY: MANAGED_BY,
        **mirror_labels(cluster_id, metadata["uid"]),
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": mirrored_metadata(
            "EndpointSlice",
            metadata,
            name=slice_name(service, metadata["uid"], cluster_id),
            namespace=namespace,
            labels=labels,
            rules=rules,
        ),
        "addressType": upper["addressType"],
        "endpoints": [
            _with_pod(
                {field: endpoint[field] for field in _ENDPOINT_FIELDS if field in endpoint},
                endpoint,
                metadata["namespace"],
                find_pod,
                known,
            )
            for endpoint in upper.get("endpoints") or ()
        ],
        "ports": [_port(port) for port in upper.get("ports") or ()],
    }


def slice_patch(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch that makes a lower slice equal to the desired one; None: they are equal."""
    changes = {
        field: desired[field]
        for field in ("endpoints", "ports")
        if _plain(lower.get(field)) != _plain(desired[field])
    }
    return object_patch(lower, desired, changes)


def lower_endpoints(
    service: Mapping[str, Any],
    slices: Iterable[Mapping[str, Any]],
    *,
    namespace: str,
    cluster_id: str,
    find_pod: FindPod,
    known: Known = _NONE_KNOWN,
    rules: MetadataRules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Return the lower Endpoints to create for a Service, from all its upper slices.

    The ports of a slice apply to its addresses only, so each slice becomes a subset. Endpoints cannot contain
    DNS names, so FQDN slices are skipped.
    """
    metadata = service["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": mirrored_metadata(
            "Endpoints",
            metadata,
            name=metadata["name"],
            namespace=namespace,
            labels={**mirror_labels(cluster_id, metadata["uid"]), LABEL_SKIP_MIRROR: "true"},
            rules=rules,
        ),
        "subsets": [
            subset
            for piece in sorted(slices, key=lambda piece: str(piece["metadata"]["name"]))
            if piece["addressType"] in _LEGACY_FAMILIES
            and (subset := _subset(piece, metadata["namespace"], find_pod, known))
        ],
    }


def endpoints_patch(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch that makes lower Endpoints equal to the desired ones; None: they are equal."""
    differs = (lower.get("subsets") or []) != desired["subsets"]
    return object_patch(lower, desired, {"subsets": desired["subsets"]} if differs else {})


def _with_pod(
    below: dict[str, Any], upper: Mapping[str, Any], namespace: str, find_pod: FindPod, known: Known
) -> dict[str, Any]:
    """Add our lower pod and its node to an endpoint, unless another cluster runs the pod; return the endpoint."""
    target = upper.get("targetRef")
    if not target or target.get("kind") != "Pod" or target.get("namespace", namespace) != namespace:
        # Users can write slices, too, and must not learn where another namespace's pod runs.
        return below
    name = target.get("name", "")
    pod = find_pod(namespace, name, target.get("uid", "")) or known.get((upper["addresses"][0], name))
    if pod is not None:
        below["targetRef"] = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        if pod.node_name:
            below["nodeName"] = pod.node_name
    return below


def _port(upper: Mapping[str, Any]) -> dict[str, Any]:
    return {field: upper[field] for field in _PORT_FIELDS if upper.get(field) not in (None, "")}


def _plain(items: Any) -> list[dict[str, Any]]:
    """Return the items without their empty fields, because servers may or may not send an empty port name."""
    return [{key: value for key, value in item.items() if value not in ("", None)} for item in items or ()]


def _subset(piece: Mapping[str, Any], namespace: str, find_pod: FindPod, known: Known) -> dict[str, Any]:
    ready: list[dict[str, Any]] = []
    not_ready: list[dict[str, Any]] = []
    for endpoint in piece.get("endpoints") or ():
        more = {"hostname": endpoint["hostname"]} if endpoint.get("hostname") else {}
        _with_pod(more, endpoint, namespace, find_pod, known)
        # Without the condition, an endpoint is ready:
        # https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#ready
        is_ready = (endpoint.get("conditions") or {}).get("ready", True) is not False
        (ready if is_ready else not_ready).extend({"ip": ip, **more} for ip in endpoint["addresses"])
    if not ready and not not_ready:
        return {}
    ports = [_port(port) for port in piece.get("ports") or ()]
    subset = {"addresses": ready, "notReadyAddresses": not_ready, "ports": ports}
    return {field: entries for field, entries in subset.items() if entries}
