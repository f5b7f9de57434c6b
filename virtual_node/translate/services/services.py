"""A Service as it is below: the same name and ports, an address of the lower cluster's own, and no selector.

The endpoints are mirrored (``endpoints``), for a selector below would find only the pods of that one cluster.
What leads into the cluster from outside (node ports, load balancers, external addresses) belongs to the upper
cluster: below, such a Service is an ordinary one with a cluster IP.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller_runtime.api import names
from controller_runtime.api.decoding import decode

_KEPT = (
    *("sessionAffinity", "sessionAffinityConfig"),
    *("internalTrafficPolicy", "publishNotReadyAddresses", "trafficDistribution"),
)
_PORT_FIELDS = ("name", "protocol", "appProtocol", "port", "targetPort")
_MANAGED = (*_KEPT, "type", "externalName", "ports", "selector", "externalIPs", "ipFamilyPolicy")
"""Fields of the spec that follow the upper Service; every other one is the lower cluster's to choose."""
_DEFAULTS = {"sessionAffinity": "None", "internalTrafficPolicy": "Cluster", "publishNotReadyAddresses": False}
"""What a server fills in: absent and so are the same.
https://kubernetes.io/docs/reference/kubernetes-api/service-resources/service-v1/"""
_NONE = "None"


def is_always(namespace: str, name: str, patterns: Sequence[str]) -> bool:
    """Whether a Service is to be below even where no pod uses it: ``namespace/name`` matches a shell pattern."""
    return any(fnmatch.fnmatchcase(f"{namespace}/{name}", pattern) for pattern in patterns)


def always_mark(node: str) -> str:
    """The annotation by which a virtual node says that it always wants a Service, pods or not."""
    return f"{names.ALWAYS_PREFIX}{node}"


def wanted_by(annotations: Mapping[str, str]) -> frozenset[str]:
    """The virtual nodes that always want a Service: each installation marks what it would miss."""
    return frozenset(
        key.removeprefix(names.ALWAYS_PREFIX) for key in annotations if key.startswith(names.ALWAYS_PREFIX)
    )


def mirror_labels(cluster_id: str, uid: str) -> dict[str, str]:
    """Ownership of what all virtual nodes of one upper cluster share."""
    return {names.LABEL_UPPER_CLUSTER: cluster_id, names.LABEL_UPPER_UID: uid}


def lower_service(
    upper: Mapping[str, Any], *, namespace: str, cluster_id: str, with_families: bool = True
) -> dict[str, Any]:
    """The Service to create below.

    Args:
        upper: the upper Service.
        namespace: the lower namespace.
        cluster_id: the upper cluster's identity.
        with_families: ask for the upper Service's IP families. The lower cluster may not have them; without,
            it is left to choose.
    """
    metadata, spec = upper["metadata"], upper["spec"]
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": mirrored_metadata(
            metadata,
            name=metadata["name"],
            namespace=namespace,
            labels=mirror_labels(cluster_id, metadata["uid"]),
        ),
    }
    below: dict[str, Any] = {field: spec[field] for field in _KEPT if field in spec}
    below["ports"] = [
        {field: port[field] for field in _PORT_FIELDS if field in port} for port in spec.get("ports") or ()
    ]
    if spec.get("type") == "ExternalName":
        below |= {"type": "ExternalName", "externalName": spec["externalName"]}
        # Nothing is routed, and servers refuse some of these here.
        for field in ("internalTrafficPolicy", "trafficDistribution"):
            below.pop(field, None)
    else:
        below["type"] = "ClusterIP"
        if spec.get("clusterIP") == _NONE:
            below["clusterIP"] = _NONE
        below |= _families(spec, with_families=with_families)
    body["spec"] = below
    return body


def upper_addresses(upper: Mapping[str, Any]) -> list[str]:
    """Return the cluster IPs of an upper Service, the first family's first; empty: it has none."""
    spec = upper["spec"]
    found = spec.get("clusterIPs") or [spec.get("clusterIP")]
    return [] if spec.get("type") == "ExternalName" else [one for one in found if one and one != _NONE]


def at_upper_addresses(upper: Mapping[str, Any], body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what to try to create, in this order, to have the upper Service's cluster IPs: all of them, the first one.

    With one address for two families the server derives the first family from it, and chooses the other address.

    Args:
        upper: the upper Service; it has cluster IPs.
        body: its copy without any.
    """
    addresses = upper_addresses(upper)
    found = [{**body, "spec": {**body["spec"], "clusterIP": addresses[0], "clusterIPs": addresses}}]
    if len(addresses) > 1:
        spec = {key: value for key, value in body["spec"].items() if key != "ipFamilies"}
        found.append({**body, "spec": {**spec, "clusterIP": addresses[0], "clusterIPs": addresses[:1]}})
    return found


def address_refusal(message: str) -> str:
    """Return why a server refused to create a Service with given cluster IPs; empty: for another reason.

    The texts are those of pkg/registry/core/service/ipallocator; with ServiceCIDR objects it is the second.
    """
    if "provided IP is already allocated" in message:
        return "already allocated"
    if "not in the valid range" in message or "does not match the current range" in message:
        return "out of range"
    if "ipFamil" in message:
        return "IP family not configured"
    return "refused" if "clusterIP" in message else ""


def must_replace(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Whether a lower Service can become the desired one only as a new object.

    Its label names an upper Service that is gone (one whose label was removed keeps its address), or it differs in what is fixed at creation: having an address
    (https://kubernetes.io/docs/concepts/services-networking/service/#headless-services), or being a name only.
    The first IP family is fixed, too, but above as well; below it is what the lower cluster could give.
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
    """A merge patch that makes a lower Service the desired one; None when it is.

    What the lower cluster chose (addresses, their families) stays, and so do labels and annotations of others.
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
    patch = {"spec": spec} if spec else {}
    if metadata := metadata_patch(lower["metadata"], desired["metadata"]):
        patch["metadata"] = metadata
    return patch or None


def mirrored_metadata(
    upper: Mapping[str, Any],
    *,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    left_out: Iterable[str] = (),
) -> dict[str, Any]:
    """Metadata of a copy below: labels and annotations of the original, and whose it is.

    Args:
        upper: the original's metadata.
        name: the copy's.
        namespace: the copy's.
        labels: over the original's.
        left_out: labels and annotations that are not carried.
    """
    skip = {names.ANNOTATION_LAST_APPLIED, *left_out}
    carried, annotations = (
        {
            key: value
            for key, value in (upper.get(field) or {}).items()
            if key not in skip and not names.is_reserved(key)
        }
        for field in ("labels", "annotations")
    )
    applied = {
        field: sorted(keys) for field, keys in (("labels", carried), ("annotations", annotations)) if keys
    }
    return {
        "name": name,
        "namespace": namespace,
        "labels": {**carried, **labels},
        "annotations": {
            **annotations,
            names.ANNOTATION_GLOBAL: "true",
            names.ANNOTATION_UPPER_NAMESPACE: upper["namespace"],
            names.ANNOTATION_APPLIED: json.dumps(applied, sort_keys=True, separators=(",", ":")),
        },
    }


def metadata_patch(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a merge patch for labels and annotations; those that we set before and no more are removed."""
    applied = _applied(lower.get("annotations") or {})
    patch: dict[str, Any] = {}
    for field in ("labels", "annotations"):
        current, wanted = lower.get(field) or {}, desired[field]
        change: dict[str, Any] = {key: value for key, value in wanted.items() if current.get(key) != value}
        change |= {key: None for key in applied.get(field) or () if key in current and key not in wanted}
        if change:
            patch[field] = change
    return patch


def _applied(annotations: Mapping[str, str]) -> dict[str, list[str]]:
    try:
        found = decode(annotations.get(names.ANNOTATION_APPLIED, "{}"))
    except ValueError:  # somebody's meddling; it is written anew
        return {}
    return found if isinstance(found, dict) else {}


def _families(spec: Mapping[str, Any], *, with_families: bool) -> dict[str, Any]:
    """Both families where the upper Service has both and the lower cluster can; never a demand it cannot meet."""
    policy, families = spec.get("ipFamilyPolicy"), spec.get("ipFamilies")
    if not policy:
        return {}
    if not with_families or not families:
        return {"ipFamilyPolicy": "PreferDualStack"}
    return {
        "ipFamilyPolicy": "SingleStack" if policy == "SingleStack" else "PreferDualStack",
        "ipFamilies": families,
    }
