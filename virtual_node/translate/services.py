"""The lower copy of a Service: same name and ports, an address of the lower cluster, and no selector.

The endpoints are mirrored (``endpoints``), because a selector would find only the pods of this lower cluster.
Access from outside (node ports, load balancers, external addresses) belongs to the upper cluster, so the copy
of such a Service has only a cluster IP.

``lower_export`` copies a ServiceExport, so that a multi-cluster service implementation connects the lower clusters (KEP-1645).
An export has the name and namespace of its Service. Its status belongs to each cluster, so it is not copied.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model import names
from clusterset.model.pod import api_access
from controller_runtime.objects import Object
from virtual_node.translate.base.metadata import copied
from virtual_node.translate.base.view import NOT_NEEDED, Translation, View, of_spec

_KEPT = (
    *("sessionAffinity", "sessionAffinityConfig"),
    *("internalTrafficPolicy", "publishNotReadyAddresses", "trafficDistribution"),
)
_PORT_FIELDS = ("name", "protocol", "appProtocol", "port", "targetPort")
_MANAGED = (*_KEPT, "type", "externalName", "ports", "selector", "externalIPs", "ipFamilyPolicy")
"""Fields of the spec that follow the upper Service; the lower cluster chooses all others."""
_DEFAULTS = {"sessionAffinity": "None", "internalTrafficPolicy": "Cluster", "publishNotReadyAddresses": False}
"""Defaults that an API server fills in. An absent field counts as equal to its default.
https://kubernetes.io/docs/reference/kubernetes-api/service-resources/service-v1/"""
_NONE = "None"
_TRAFFIC, _SAME_ZONE, _CLOSE = "trafficDistribution", "PreferSameZone", "PreferClose"
"""PreferClose means the same as PreferSameZone, which API servers before Kubernetes 1.34 refuse. They refuse PreferSameNode, too.
https://kubernetes.io/docs/reference/networking/virtual-ips/#traffic-distribution"""
_METADATA = {"exportedLabels": "labels", "exportedAnnotations": "annotations"}
"""Fields of ``spec``, which ServiceImports get as labels and annotations."""


def is_always(key: str, patterns: Sequence[str]) -> bool:
    """Report whether ``namespace/name`` matches a pattern, so that the Service is copied even if no pod uses it."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def always_mark(node: str) -> str:
    """Return the annotation key with which a virtual node marks the copy of a Service that it always needs."""
    return f"{names.ALWAYS_PREFIX}{node}"


def wanted_by(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the virtual nodes that marked a Service's copy as always needed; each sets a mark of its own."""
    return frozenset(
        key.removeprefix(names.ALWAYS_PREFIX) for key in annotations if key.startswith(names.ALWAYS_PREFIX)
    )


def marks(key: str, view: View) -> dict[str, str | None]:
    """Return our annotation on the copy of a Service: a value if ``services.always`` includes it, otherwise None."""
    return {always_mark(min(view.nodes)): "true" if is_always(key, view.always) else None}


def is_kept_for_others(copy: Object, view: View) -> bool:
    """Report whether the annotations of a copy show that another installation always needs it."""
    return bool(wanted_by(copy.annotations) - {min(view.nodes)})


def lower_service(upper: Mapping[str, Any], _view: View) -> Translation:
    """Return the copy of a Service; no content for ``default/kubernetes``, which ``api_service`` stands for."""
    if (upper["metadata"]["namespace"], upper["metadata"]["name"]) == api_access.SERVICE:
        return NOT_NEEDED
    spec = upper["spec"]
    below: dict[str, Any] = {field: spec[field] for field in _KEPT if field in spec}
    if below.get(_TRAFFIC) == _SAME_ZONE:
        below[_TRAFFIC] = _CLOSE
    below["ports"] = [
        {field: port[field] for field in _PORT_FIELDS if field in port} for port in spec.get("ports") or ()
    ]
    if spec.get("type") == "ExternalName":
        below |= {"type": "ExternalName", "externalName": spec["externalName"]}
        # Traffic is not routed here, and API servers refuse some of these fields.
        for field in ("internalTrafficPolicy", "trafficDistribution"):
            below.pop(field, None)
        return of_spec(below)
    below["type"] = "ClusterIP"
    if spec.get("clusterIP") == _NONE:
        below["clusterIP"] = _NONE
    # Both families are requested only if the lower cluster can provide them.
    policy, families = spec.get("ipFamilyPolicy"), spec.get("ipFamilies")
    if policy and families:
        below["ipFamilyPolicy"] = "SingleStack" if policy == "SingleStack" else "PreferDualStack"
        below["ipFamilies"] = families
    elif policy:
        below["ipFamilyPolicy"] = "PreferDualStack"
    return of_spec(below)


def bodies(upper: Mapping[str, Any], desired: Mapping[str, Any], view: View) -> list[dict[str, Any]]:
    """Return the Services to try to create, most similar to the upper one first.

    Later ones let the lower cluster choose the IP families, or have a trafficDistribution that older versions know. The upper addresses are only requested here, because a
    Service's addresses cannot be changed later.
    """
    requests_same = view.requests_same_addresses and upper_addresses(upper)
    found = [*(at_upper_addresses(upper, desired) if requests_same else ()), dict(desired)]
    if "ipFamilies" in desired["spec"]:
        spec = {key: value for key, value in desired["spec"].items() if key != "ipFamilies"}
        found.append({**desired, "spec": {**spec, "ipFamilyPolicy": "PreferDualStack"}})
    if desired["spec"].get(_TRAFFIC) not in (None, _CLOSE):
        found += [{**body, "spec": {**body["spec"], _TRAFFIC: _CLOSE}} for body in found]
    return found


def other_addresses(
    upper: Mapping[str, Any], created: Mapping[str, Any], cause: str, view: View
) -> tuple[str, str]:
    """Return reason and text of an event about addresses that were refused; empty: none were requested."""
    requested = upper_addresses(upper)
    given = ", ".join(upper_addresses(created))
    if not view.requests_same_addresses or not requested or given == ", ".join(requested):
        return "", ""
    text = f"gave the Service {given} instead of {', '.join(requested)}: {cause} (services.clusterIP: same)"
    return "OtherClusterIP", text


def upper_addresses(upper: Mapping[str, Any]) -> list[str]:
    """Return the cluster IPs of an upper Service, the first family's first; empty: it has none."""
    spec = upper["spec"]
    found = spec.get("clusterIPs") or [spec.get("clusterIP")]
    return [] if spec.get("type") == "ExternalName" else [one for one in found if one and one != _NONE]


def at_upper_addresses(upper: Mapping[str, Any], body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the Services to try to create, in this order: with all upper cluster IPs, then with only the first.

    If only one of two addresses is given, the API server derives the first family from it and chooses the
    other address.

    Args:
        upper: the upper Service, with cluster IPs.
        body: its copy without cluster IPs.
    """
    addresses = upper_addresses(upper)
    found = [{**body, "spec": {**body["spec"], "clusterIP": addresses[0], "clusterIPs": addresses}}]
    if len(addresses) > 1:
        spec = {key: value for key, value in body["spec"].items() if key != "ipFamilies"}
        found.append({**body, "spec": {**spec, "clusterIP": addresses[0], "clusterIPs": addresses[:1]}})
    return found


def refusal(message: str) -> str:
    """Return why an API server refused a Service, if another one of ``bodies`` may be accepted; otherwise empty.

    The texts are those of pkg/registry/core/service/ipallocator; "does not match" comes from servers with
    ServiceCIDR objects.
    """
    if "provided IP is already allocated" in message:
        return "already allocated"
    if "not in the valid range" in message or "does not match the current range" in message:
        return "out of range"
    if "ipFamil" in message:
        return "IP family not configured"
    if _TRAFFIC in message:
        return "trafficDistribution not known"
    return "refused" if "clusterIP" in message else ""


def must_replace(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Report whether a lower Service must be deleted and created again to become the desired one.

    Either its label names an upper Service that no longer exists, or it differs in a field that is fixed at
    creation: having a cluster IP
    (https://kubernetes.io/docs/concepts/services-networking/service/#headless-services) or being of type
    ExternalName. A Service that only lost the label is not replaced. The first IP family is also fixed, but
    may differ, because the lower cluster chooses it.
    """
    old, new = lower["spec"], desired["spec"]
    uid = desired["metadata"]["labels"][names.LABEL_UPPER_UID]
    made_for = (lower["metadata"].get("labels") or {}).get(names.LABEL_UPPER_UID, uid)
    return bool(
        made_for != uid
        or (old.get("type") == "ExternalName") != (new["type"] == "ExternalName")
        or (old.get("clusterIP") == _NONE) != (new.get("clusterIP") == _NONE)
    )


def changes(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch of the spec; addresses and families that the lower cluster chose are kept."""
    spec: dict[str, Any] = {}
    old, new = lower["spec"], desired["spec"]
    for field in _MANAGED:
        current, wanted = old.get(field), new.get(field)
        if field == "ports":
            current = [
                {key: port[key] for key in (*_PORT_FIELDS, "nodePort") if port.get(key)}
                for port in current or ()
            ]
            if current != [{key: value for key, value in port.items() if value} for port in wanted]:
                spec[field] = wanted
        elif field == "ipFamilyPolicy":
            if current and wanted and current != wanted:
                spec[field] = wanted
            if wanted == "SingleStack" and len(old.get("ipFamilies") or ()) > 1:
                spec |= {"ipFamilies": old["ipFamilies"][:1], "clusterIPs": (old.get("clusterIPs") or [])[:1]}
        elif (current or _DEFAULTS.get(field)) != (wanted or _DEFAULTS.get(field)):
            spec[field] = wanted
    return {"spec": spec} if spec else {}


def has_address(service: Object, copy: Object | None) -> bool:
    """Report whether an upper Service has a copy, with an address if the upper Service has one."""
    if copy is None:
        return False
    return bool(cluster_ip(copy.spec or {})) or not cluster_ip(service.spec or {})


def cluster_ip(spec: Mapping[str, Any]) -> str:
    """Return a Service's address; empty: it has none (headless, ExternalName)."""
    address = str(spec.get("clusterIP") or "")
    return "" if address == "None" else address


def service_of(name: str, _labels: Mapping[str, str]) -> str:
    """Return the name of the Service that is exported, given the name and labels of the export."""
    return name


def lower_export(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of a ServiceExport; no content if its Service has no copy in the lower cluster.

    Exported labels and annotations follow ``policy.metadata``, as if they were those of the copy.
    """
    metadata, spec = upper["metadata"], upper.get("spec") or {}
    if not view.has_service(metadata["namespace"], metadata["name"]):
        return NOT_NEEDED
    exported = {field: spec.get(name) for name, field in _METADATA.items()}
    kept = copied(upper["kind"], exported, view.rules_of(metadata["namespace"]))
    below = {name: kept[field] for name, field in _METADATA.items() if kept[field]}
    ignored = sorted(spec.keys() - _METADATA.keys())
    notes = (f"{', '.join(ignored)} is left out",) if ignored else ()
    return Translation({"spec": below} if below else {}, notes)
