"""The lower copies of EndpointSlices, and EndpointSlices that others add to the lower copy of a Service.

Pods have addresses of their own cluster. On a flat network the upper cluster's endpoints are therefore valid
in every cluster. Names of the node and the pod are translated if this lower cluster runs the pod. Otherwise
they are left out, as zones always are, because kube-proxy ignores an endpoint with a hint that is not valid
in its cluster.

If this lower cluster runs the pod, the lower pod also decides the conditions of the endpoint, as it would in the
EndpointSlice controller. The upper conditions come from the upper pod, which the upper cluster reports not ready while the
process of its virtual node is away.

A copied Service has no selector, so the lower cluster mirrors any ``Endpoints`` object of its name to a slice. Users can also
create slices with its name. Requests to the Service then also reach these addresses. virtual-node never changes such objects,
and writes an event about them.

Source: pkg/controller/endpointslicemirroring of Kubernetes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from controller_runtime.apimachinery import readable
from controller_runtime.objects import Object
from virtual_node.translate.base.view import NOT_NEEDED, LowerPod, Translation, View

LABEL_SERVICE = "kubernetes.io/service-name"
LABEL_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY = "virtual-node.io"
"""Value of the managed-by label. Other controllers do not change slices of this manager.
https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#management"""
FROM_PODS = "endpointslice-controller.k8s.io"
"""Value of the managed-by label of the EndpointSlice controller, which computes conditions from pods. Conditions in slices of
other managers have meanings of their own, and are copied."""
_ENDPOINT_FIELDS = ("addresses", "conditions", "hostname")
_PORT_FIELDS = ("name", "protocol", "port", "appProtocol")
_HASH = 10


class _Target(msgspec.Struct):
    uid: str = ""


class _Endpoint(msgspec.Struct):
    target: _Target | None = msgspec.field(default=None, name="targetRef")


def pods_of(upper: Object) -> Iterable[str]:
    """Return the uids of the pods that decide the conditions of an upper slice's endpoints, for an index."""
    if upper.labels.get(LABEL_MANAGED_BY) != FROM_PODS:
        return ()
    try:
        found = msgspec.convert(upper.field("endpoints") or [], list[_Endpoint], strict=False)
    except msgspec.ValidationError:
        return ()
    return [one.target.uid for one in found if one.target is not None and one.target.uid]


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
            "endpoints": _endpoints(upper, namespace, view),
            "ports": [_port(port) for port in upper.get("ports") or ()],
        }
    )


def changes(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch of endpoints and ports."""
    return {
        field: desired[field]
        for field in ("endpoints", "ports")
        if _plain(lower.get(field)) != _plain(desired[field])
    }


def _service(upper: Mapping[str, Any]) -> str:
    return service_of("", upper["metadata"].get("labels") or {})


def _endpoints(upper: Mapping[str, Any], namespace: str, view: View) -> list[dict[str, Any]]:
    """Return the copies of a slice's endpoints, with our lower pods and their nodes unless another cluster runs them."""
    is_from_pods = (upper["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) == FROM_PODS
    publishes_unready = is_from_pods and view.publishes_unready(namespace, _service(upper))
    found = []
    for endpoint in upper.get("endpoints") or ():
        below: dict[str, Any] = {field: endpoint[field] for field in _ENDPOINT_FIELDS if field in endpoint}
        found.append(below)
        if (pod := _pod(endpoint, namespace, view)) is None:
            continue
        below["targetRef"] = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        if pod.node_name:
            below["nodeName"] = pod.node_name
        if is_from_pods and pod.is_ready is not None:
            is_terminating = pod.is_terminating or bool((endpoint.get("conditions") or {}).get("terminating"))
            below["conditions"] = {
                "ready": publishes_unready or (pod.is_ready and not is_terminating),
                "serving": pod.is_ready,
                "terminating": is_terminating,
            }
    return found


def _pod(endpoint: Mapping[str, Any], namespace: str, view: View) -> LowerPod | None:
    """Return the lower pod of an endpoint; None: another cluster runs it, or the endpoint is not a pod of the namespace."""
    if not (name := _pod_name(endpoint, namespace)):
        return None
    pod = view.find_pod(namespace, name, endpoint["targetRef"].get("uid", ""))
    if pod is None or pod.addresses is None or pod.addresses.issuperset(endpoint["addresses"]):
        return pod
    return None


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


_MIRRORING = "endpointslicemirroring-controller.k8s.io"
SELECTOR = f"{LABEL_SERVICE},{LABEL_MANAGED_BY} notin ({FROM_PODS},{MANAGED_BY})"
"""Selects the slices of neither Services with a selector nor of virtual nodes, so a watch of them costs little."""
_SHOWN = 3
"""Number of slices that a message names."""


class Slice(NamedTuple):
    """A foreign slice of a Service."""

    name: str
    manager: str


def lower_service(found: Object) -> tuple[str, ...]:
    """Return the key of the lower Service of a slice, for an index."""
    name = found.labels.get(LABEL_SERVICE)
    return (f"{found.namespace}/{name}",) if name else ()


def shrunk(found: Object) -> Object:
    """Return a slice without its endpoints, which are not needed."""
    return Object(found.metadata, found.api_version, found.kind, None, None, None).without_metadata(
        "annotations"
    )


def message(service: str, slices: Sequence[Slice]) -> str:
    """Return what is wrong with a Service that has foreign slices, and the next step; empty: it has none.

    Args:
        service: key of the lower Service.
        slices: its foreign slices.
    """
    if not slices:
        return ""
    namespace, _, name = service.partition("/")
    # The controller would create a mirrored slice again.
    remedies = {
        f"Endpoints {name}" if one.manager == _MIRRORING else f"EndpointSlice {one.name}" for one in slices
    }
    return (
        f"others add addresses to the copy of this Service, and a part of its requests goes there: EndpointSlice "
        f"{readable.some(sorted(one.name for one in slices), limit=_SHOWN)}. In namespace {namespace} of the lower cluster, "
        f"delete {readable.some(sorted(remedies), limit=_SHOWN)}, or rename the Service"
    )
