"""The lower copies of EndpointSlices.

Pods have addresses of their own cluster. On a flat network the upper cluster's endpoints are therefore valid
in every cluster. Names of the node and the pod are translated if this lower cluster runs the pod. Otherwise
they are left out, as zones always are, because kube-proxy ignores an endpoint with a hint that is not valid
in its cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from virtual_node.translate.base.view import NOT_NEEDED, FindPod, Translation, View

LABEL_SERVICE = "kubernetes.io/service-name"
LABEL_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY = "virtual-node.io"
"""Value of the managed-by label. Other controllers do not change slices of this manager.
https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#management"""
_ENDPOINT_FIELDS = ("addresses", "conditions", "hostname")
_PORT_FIELDS = ("name", "protocol", "port", "appProtocol")
_HASH = 10


def slice_name(service: str, uid: str, cluster_id: str) -> str:
    """Return the name of the lower EndpointSlice for an upper one: deterministic, and unique."""
    digest = hashlib.sha256(f"{cluster_id}/{uid}".encode()).hexdigest()[:_HASH]
    return f"{service}-{digest}"


def lower_name(_name: str, upper: Mapping[str, Any] | None, view: View) -> str:
    """Return the name of the copy of an EndpointSlice; empty: the upper one is gone, so it cannot be derived."""
    if upper is None:
        return ""
    return slice_name(_service(upper), upper["metadata"]["uid"], view.cluster_id)


def service_of(_name: str, labels: Mapping[str, str]) -> str:
    """Return the name of the Service that an EndpointSlice belongs to, given its name and labels; empty: none."""
    return labels.get(LABEL_SERVICE, "")


def labels_of(upper: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a copy that make it endpoints of the Service, and ours."""
    return {LABEL_SERVICE: _service(upper), LABEL_MANAGED_BY: MANAGED_BY}


def lower_slice(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of an EndpointSlice; no content if its Service has no copy in the lower cluster."""
    namespace = upper["metadata"]["namespace"]
    if not view.has_service(namespace, _service(upper)):
        return NOT_NEEDED
    return Translation(
        {
            "addressType": upper["addressType"],
            "endpoints": [
                _endpoint(endpoint, namespace, view.find_pod) for endpoint in upper.get("endpoints") or ()
            ],
            "ports": [_port(port) for port in upper.get("ports") or ()],
        }
    )


def with_known_pods(
    current: Mapping[str, Any], desired: Mapping[str, Any], upper: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a slice with the pods in the current copy for endpoints without a pod of this process.

    Two processes may share a lower cluster, and each knows only its own pods. Without this, they would undo each
    other's writes.
    """
    known = {
        (address, target["name"]): {
            field: endpoint[field] for field in ("targetRef", "nodeName") if field in endpoint
        }
        for endpoint in current.get("endpoints") or ()
        if (target := endpoint.get("targetRef")) and target.get("kind") == "Pod" and target.get("name")
        for address in endpoint["addresses"]
    }
    namespace = upper["metadata"]["namespace"]
    endpoints = []
    for endpoint, above in zip(desired["endpoints"], upper.get("endpoints") or (), strict=True):
        name = "" if "targetRef" in endpoint else _pod_name(above, namespace)
        endpoints.append(
            {**endpoint, **known.get((endpoint["addresses"][0], name), {})} if name else endpoint
        )
    return {**desired, "endpoints": endpoints}


def changes(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch of endpoints and ports."""
    return {
        field: desired[field]
        for field in ("endpoints", "ports")
        if _plain(lower.get(field)) != _plain(desired[field])
    }


def _service(upper: Mapping[str, Any]) -> str:
    return service_of("", upper["metadata"].get("labels") or {})


def _endpoint(upper: Mapping[str, Any], namespace: str, find_pod: FindPod) -> dict[str, Any]:
    """Return the copy of an endpoint, with our lower pod and its node unless another cluster runs the pod."""
    below: dict[str, Any] = {field: upper[field] for field in _ENDPOINT_FIELDS if field in upper}
    if not (name := _pod_name(upper, namespace)):
        return below
    pod = find_pod(namespace, name, upper["targetRef"].get("uid", ""))
    if pod is not None:
        below["targetRef"] = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        if pod.node_name:
            below["nodeName"] = pod.node_name
    return below


def _pod_name(upper: Mapping[str, Any], namespace: str) -> str:
    """Return the name of an endpoint's pod; empty: it has none, or the pod is in another namespace.

    Users can write slices, too, and must not learn where another namespace's pod runs.
    """
    target = upper.get("targetRef") or {}
    is_local = target.get("kind") == "Pod" and target.get("namespace", namespace) == namespace
    return str(target.get("name") or "") if is_local else ""


def _port(upper: Mapping[str, Any]) -> dict[str, Any]:
    return {field: upper[field] for field in _PORT_FIELDS if upper.get(field) not in (None, "")}


def _plain(items: Any) -> list[dict[str, Any]]:
    """Return the items without their empty fields, because servers may or may not send an empty port name."""
    return [{key: value for key, value in item.items() if value not in ("", None)} for item in items or ()]
