"""Mirrors of lower PersistentVolumes in the upper cluster.

A mirror's volume source is a CSI driver that no node has, so the upper cluster's controllers cannot attach,
provision or delete anything through it. The mirror has the data that they need about a volume: capacity,
modes, class and the nodes that can reach it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery import matching
from virtual_node.translate.base import fields
from virtual_node.translate.base.metadata import map_patch

DRIVER = f"lower-cluster.{names.DOMAIN}"
ANNOTATION_SOURCE_OF_VOLUME = f"{names.DOMAIN}/volume-source"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_LONGEST = 253
_MOST_REQUIREMENTS = 1000
"""Maximum number of terms, expressions and values of a lower volume's node affinity that are compared with each lower node."""
_LONGEST_SOURCE = 20_000
"""Maximum characters of the annotation with a volume's source."""
_POLICY = "persistentVolumeReclaimPolicy"
_ATTRIBUTES = "volumeAttributesClassName"
_CARRIED = {
    "accessModes": fields.listed(
        fields.choice("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"), 4
    ),
    "volumeMode": fields.choice("Filesystem", "Block"),
    "capacity": fields.fields({"storage": fields.amount}),
    _POLICY: fields.choice("Retain", "Delete", "Recycle"),
}
_carried = fields.fields(_CARRIED)
_PUBLISHABLE = ("kubernetes.io/no-provisioner", f"{names.DOMAIN}/")
"""Beginnings of the provisioners that create no volumes in the upper cluster."""
_NOT_A_SOURCE = frozenset({*_CARRIED, "claimRef", "nodeAffinity", "storageClassName", _ATTRIBUTES})


def mirror_name(cluster: str, volume: str) -> str:
    """Return the mirror's name from cluster and lower volume. A name that is too long is shortened, with a hash."""
    name = f"{cluster}-{volume}"
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9].rstrip('.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def is_mirror(volume: Mapping[str, Any]) -> bool:
    """Report whether an upper volume is a mirror, of any lower cluster."""
    return (volume["spec"].get("csi") or {}).get("driver") == DRIVER


def lower_name(mirror: Mapping[str, Any], cluster: str) -> str:
    """Return the name of the lower volume that an upper volume mirrors; empty: it mirrors no volume of this cluster."""
    csi = mirror["spec"].get("csi") or {}
    prefix = f"{cluster}/"
    handle = str(csi.get("volumeHandle") or "")
    if csi.get("driver") != DRIVER or not handle.startswith(prefix):
        return ""
    return handle.removeprefix(prefix)


def is_publishable(storage_class: Mapping[str, Any]) -> bool:
    """Report whether free lower volumes may get mirrors of an upper StorageClass.

    The volume controller of the upper cluster binds a claim to an existing volume before it asks a provisioner. So a
    lower cluster could take the claims of a class for which the upper cluster provisions volumes.
    """
    return str(storage_class.get("provisioner") or "").startswith(_PUBLISHABLE)


def upper_volume(
    lower: Mapping[str, Any],
    *,
    cluster: str,
    cluster_labels: Mapping[str, str],
    nodes: Sequence[str],
    storage_class: str,
    claim: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the mirror to create in the upper cluster.

    Args:
        lower: the lower volume.
        cluster: the lower cluster's name.
        cluster_labels: labels that identify the lower cluster.
        nodes: the virtual nodes that can reach the volume.
        storage_class: the mirror's StorageClass in the upper cluster.
        claim: the upper claim that the mirror is bound to; None: it is free.
    """
    below = lower["spec"]
    known = _carried(below) or {}
    spec: dict[str, Any] = {field: value for field, value in known.items() if value is not None}
    spec["storageClassName"] = storage_class
    spec["csi"] = {"driver": DRIVER, "volumeHandle": f"{cluster}/{lower['metadata']['name']}"}
    on_nodes = {"key": names.LABEL_HOSTNAME, "operator": "In", "values": sorted(nodes)}
    spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_nodes]}]}}
    annotations = {_PROVISIONED_BY: DRIVER, names.ANNOTATION_GLOBAL: "true"}
    # kube-controller-manager binds no claim to a volume with another class.
    if attributes := attributes_class(below) if claim is None else claim["spec"].get(_ATTRIBUTES):
        spec[_ATTRIBUTES] = attributes
    if claim is not None:
        spec["claimRef"] = claim_reference(claim)
        source = {key: value for key, value in below.items() if key not in _NOT_A_SOURCE}
        annotations[ANNOTATION_SOURCE_OF_VOLUME] = json.dumps(source, sort_keys=True)[:_LONGEST_SOURCE]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": mirror_name(cluster, lower["metadata"]["name"]),
            "labels": {**cluster_labels},
            "annotations": annotations,
        },
        "spec": spec,
    }


def attributes_class(spec: Mapping[str, Any]) -> str:
    """Return the VolumeAttributesClass in the spec of a lower volume; empty: it has none, or no valid name."""
    name = spec.get(_ATTRIBUTES)
    return str(name) if fields.is_name(name) else ""


def is_retained(volume: Mapping[str, Any]) -> bool:
    """Report whether the data of a volume is kept when its claim is deleted."""
    return bool(volume["spec"].get(_POLICY) == "Retain")


def volume_patch(mirror: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch for a mirror's capacity, reclaim policy, missing claimRef and metadata; None: nothing differs.

    ``Retain`` stays, because an administrator of the upper cluster may have set it. The VolumeAttributesClass of a bound
    mirror stays, because changes of the class are not made to the lower volume.
    """
    metadata = {
        field: missing
        for field in ("labels", "annotations")
        if (missing := map_patch(mirror["metadata"].get(field), desired["metadata"][field]))
    }
    current, wanted = mirror["spec"], desired["spec"]
    spec = {
        field: wanted[field]
        for field in ("capacity", _POLICY)
        if field in wanted
        and current.get(field) != wanted[field]
        and not (field == _POLICY and is_retained(mirror))
    }
    is_bound = (mirror.get("status") or {}).get("phase") == "Bound"
    if _ATTRIBUTES in wanted and _ATTRIBUTES not in current and not is_bound:
        spec[_ATTRIBUTES] = wanted[_ATTRIBUTES]
    if "claimRef" in wanted and not current.get("claimRef"):
        spec["claimRef"] = wanted["claimRef"]
    return {field: change for field, change in (("metadata", metadata), ("spec", spec)) if change} or None


def claim_reference(claim: Mapping[str, Any]) -> dict[str, str]:
    """Return the ``claimRef`` of a volume that is bound to a claim."""
    metadata = claim["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def has_readable_affinity(volume: Mapping[str, Any]) -> bool:
    """Report whether a lower volume's node affinity is small enough to be compared with each lower node."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    size = 0
    for term in required.get("nodeSelectorTerms") or ():
        expressions = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
        size += 1 + sum(1 + len(one.get("values") or ()) for one in expressions)
        if size > _MOST_REQUIREMENTS:
            return False
    return True


def reachable_from(volume: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Report whether a lower node can use a lower volume."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    if not required:
        return True
    metadata = node["metadata"]
    return any(
        matching.matches_term(term, name=metadata["name"], labels=metadata.get("labels") or {})
        for term in required.get("nodeSelectorTerms") or ()
    )


def csi_driver() -> dict[str, Any]:
    """Return the CSIDriver for mirrors; it makes the upper attach-detach controller attach nothing."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": DRIVER},
        "spec": {"attachRequired": False, "podInfoOnMount": False},
    }
