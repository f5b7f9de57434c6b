"""The lower copy of a Service: same name and ports, an address of the lower cluster, and no selector.

The endpoints are mirrored (``endpoints``), because a selector would find only the pods of this lower cluster.
Access from outside (node ports, load balancers, external addresses) belongs to the upper cluster, so the copy
of such a Service has only a cluster IP.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model import names
from clusterset.model.policy.config import MetadataRules
from virtual_node.translate.base.metadata import DEFAULT_RULES, copied, object_patch

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


def is_always(namespace: str, name: str, patterns: Sequence[str]) -> bool:
    """Report whether ``namespace/name`` matches a pattern, so that the Service is copied even if no pod uses it."""
    return any(fnmatch.fnmatchcase(f"{namespace}/{name}", pattern) for pattern in patterns)


def always_mark(node: str) -> str:
    """Return the annotation key with which a virtual node marks the copy of a Service that it always needs."""
    return f"{names.ALWAYS_PREFIX}{node}"


def wanted_by(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the virtual nodes that marked a Service's copy as always needed; each sets a mark of its own."""
    return frozenset(
        key.removeprefix(names.ALWAYS_PREFIX) for key in annotations if key.startswith(names.ALWAYS_PREFIX)
    )


def mirror_labels(cluster_id: str, uid: str) -> dict[str, str]:
    """Return the ownership labels of objects that all virtual nodes of an upper cluster share."""
    return {names.LABEL_UPPER_CLUSTER: cluster_id, names.LABEL_UPPER_UID: uid}


def lower_service(
    upper: Mapping[str, Any],
    *,
    namespace: str,
    cluster_id: str,
    with_families: bool = True,
    rules: MetadataRules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Return the lower Service to create.

    Args:
        upper: the upper Service.
        namespace: the lower namespace.
        cluster_id: the upper cluster's identity.
        with_families: request the upper Service's IP families, which the lower cluster may not have. Without
            this, the lower cluster chooses.
        rules: ``policy.metadata`` for the upper namespace.
    """
    metadata, spec = upper["metadata"], upper["spec"]
    labels = mirror_labels(cluster_id, metadata["uid"])
    below: dict[str, Any] = {field: spec[field] for field in _KEPT if field in spec}
    below["ports"] = [
        {field: port[field] for field in _PORT_FIELDS if field in port} for port in spec.get("ports") or ()
    ]
    if spec.get("type") == "ExternalName":
        below |= {"type": "ExternalName", "externalName": spec["externalName"]}
        # Traffic is not routed here, and API servers refuse some of these fields.
        for field in ("internalTrafficPolicy", "trafficDistribution"):
            below.pop(field, None)
    else:
        below["type"] = "ClusterIP"
        if spec.get("clusterIP") == _NONE:
            below["clusterIP"] = _NONE
        below |= _families(spec, with_families=with_families)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": mirrored_metadata(
            "Service", metadata, name=metadata["name"], namespace=namespace, labels=labels, rules=rules
        ),
        "spec": below,
    }


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


def address_refusal(message: str) -> str:
    """Return why an API server refused to create a Service with given cluster IPs; empty: not because of the IPs.

    The texts are those of pkg/registry/core/service/ipallocator; "does not match" comes from servers with
    ServiceCIDR objects.
    """
    if "provided IP is already allocated" in message:
        return "already allocated"
    if "not in the valid range" in message or "does not match the current range" in message:
        return "out of range"
    if "ipFamil" in message:
        return "IP family not configured"
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


def service_patch(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch that makes a lower Service equal to the desired one; None: they are equal.

    Addresses and families that the lower cluster chose are kept, and so are labels and annotations of other
    clients.
    """
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
    return object_patch(lower, desired, {"spec": spec} if spec else {})


def mirrored_metadata(
    kind: str,
    upper: Mapping[str, Any],
    *,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    rules: MetadataRules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Return the metadata of a lower copy: labels and annotations of the original, plus ownership.

    Args:
        kind: kind of the copy.
        upper: the original's metadata.
        name: the copy's name.
        namespace: the copy's namespace.
        labels: labels that override the original's.
        rules: ``policy.metadata`` for the upper namespace.
    """
    kept = copied(kind, upper, rules)
    applied = {field: sorted(keys) for field, keys in kept.items() if keys}
    return {
        "name": name,
        "namespace": namespace,
        "labels": {**kept["labels"], **labels},
        "annotations": {
            **kept["annotations"],
            names.ANNOTATION_GLOBAL: "true",
            names.ANNOTATION_UPPER_NAMESPACE: upper["namespace"],
            names.ANNOTATION_APPLIED: json.dumps(applied, sort_keys=True, separators=(",", ":")),
        },
    }


def _families(spec: Mapping[str, Any], *, with_families: bool) -> dict[str, Any]:
    """Return IP family fields that the lower cluster can satisfy: both families only if it can provide them."""
    policy, families = spec.get("ipFamilyPolicy"), spec.get("ipFamilies")
    if not policy:
        return {}
    if not with_families or not families:
        return {"ipFamilyPolicy": "PreferDualStack"}
    return {
        "ipFamilyPolicy": "SingleStack" if policy == "SingleStack" else "PreferDualStack",
        "ipFamilies": families,
    }
