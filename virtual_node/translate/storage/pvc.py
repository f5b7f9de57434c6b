"""Translation of PersistentVolumeClaims to lower claims, and of their status to the upper claims.

Source: core/v1 PersistentVolumeClaim, ``pkg/controller/volume/persistentvolume`` (annotations), KEP-1790
(resize).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from clusterset.model import names
from clusterset.model.policy.config import MetadataRules
from controller_runtime.apimachinery import quantity
from virtual_node.translate.base import fields
from virtual_node.translate.base.metadata import (
    DEFAULT_RULES,
    copied,
    merge_patch,
    metadata_patch,
    of_earlier_release,
    render_record,
    sent,
)
from virtual_node.translate.base.ownership import Owner, ownership_labels

_KIND = "PersistentVolumeClaim"
FINALIZER = f"{names.DOMAIN}/lower-claim"
PROTECTION = "kubernetes.io/pvc-protection"
_CARRIED = ("accessModes", "volumeMode", "resources", "dataSource", "dataSourceRef")
_OF_NEW_VOLUME = ("selector", "volumeAttributesClassName")
"""Fields by which the lower cluster chooses or provisions a volume: labels of lower volumes, and a class of the same name."""
_PROGRESS = ("allocatedResources", "allocatedResourceStatuses")
"""Fields of the status with the progress of a resize, by resource."""
_RESIZE_CONDITIONS = ("Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError")
_RESIZE_STATUSES = (
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizePending",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
)
_condition = fields.fields(
    {
        "type": fields.choice(*_RESIZE_CONDITIONS),
        "status": fields.choice("True", "False", "Unknown"),
        "lastProbeTime": fields.moment,
        "lastTransitionTime": fields.moment,
        "reason": fields.text(256),
        "message": fields.text(1024),
    },
    required=("type", "status"),
)
_status = fields.fields(
    {
        "capacity": fields.quantities,
        "allocatedResources": fields.quantities,
        "allocatedResourceStatuses": fields.mapped(fields.choice(*_RESIZE_STATUSES)),
        "conditions": fields.listed(_condition, 100),
    }
)
"""The fields of a lower claim's status that the upper claim gets, with bounded sizes."""


def lower_claim(
    upper: Mapping[str, Any],
    *,
    namespace: str,
    owner: Owner,
    storage_class: str | None,
    volume_name: str = "",
    attributes_class: str = "",
    rules: MetadataRules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Return the lower claim to create.

    Args:
        upper: the upper claim.
        namespace: the lower namespace.
        owner: upper cluster and virtual node, for the ownership labels.
        storage_class: the lower StorageClass; None: the lower cluster's default.
        volume_name: the lower volume that the lower claim must be bound to; empty: any.
        attributes_class: the VolumeAttributesClass of that volume, without which it is not bound; empty: none.
        rules: ``policy.metadata`` for the upper namespace.
    """
    above = upper["spec"]
    spec = {field: above[field] for field in _CARRIED if field in above}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    if volume_name:
        spec["volumeName"] = volume_name
        spec |= {"volumeAttributesClassName": attributes_class} if attributes_class else {}
    else:
        spec |= {field: above[field] for field in _OF_NEW_VOLUME if above.get(field)}
    metadata = _metadata(upper, rules)
    labels = {**metadata["labels"], **ownership_labels(owner, upper["metadata"]["uid"])}
    return {
        "apiVersion": "v1",
        "kind": _KIND,
        "metadata": {
            **metadata,
            "name": upper["metadata"]["name"],
            "namespace": namespace,
            "labels": labels,
        },
        "spec": spec,
    }


def _metadata(upper: Mapping[str, Any], rules: MetadataRules) -> dict[str, dict[str, str]]:
    """Return the labels and annotations of an upper claim's lower claim, with their record, but without ownership labels.

    An empty record, too, is written, because a claim without one counts as one of an earlier release.
    """
    kept = copied(_KIND, upper["metadata"], rules)
    record = {field: keys for field, keys in sent(kept, own={}).items() if keys}
    noted = {names.ANNOTATION_APPLIED: render_record(record)}
    return {
        "labels": kept["labels"],
        "annotations": {**kept["annotations"], **_marks(upper["metadata"]), **noted},
    }


def selected_node(claim: Mapping[str, Any]) -> str:
    """Return the node that the scheduler selected for the first pod that uses a claim; empty: none yet."""
    return str((claim["metadata"].get("annotations") or {}).get(names.ANNOTATION_SELECTED_NODE) or "")


def source_claims(claim: Mapping[str, Any]) -> list[str]:
    """Return the claims of the same namespace that a claim is to be cloned from, without duplicates."""
    return list(dict.fromkeys(one["name"] for one in _sources(claim) if _is_claim(one)))


def foreign_source(claim: Mapping[str, Any]) -> str:
    """Return a data source that is not a claim of the same namespace (``VolumeSnapshot nightly``); empty: none.

    In the lower cluster its name would refer to an object that we did not create, with other owners' data.
    """
    return next((f"{one.get('kind')} {one.get('name')}" for one in _sources(claim) if not _is_claim(one)), "")


def _sources(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for field in ("dataSource", "dataSourceRef") if (one := claim["spec"].get(field))]


def _is_claim(source: Mapping[str, Any]) -> bool:
    is_core = not source.get("apiGroup") and source.get("kind") == _KIND
    return is_core and not source.get("namespace")


def is_bound(claim: Mapping[str, Any]) -> bool:
    """Report whether a claim is bound to its volume."""
    return bool((claim.get("status") or {}).get("phase") == "Bound")


def never_bound(claim: Mapping[str, Any]) -> bool:
    """Report whether a claim has never had a volume, so that deleting it loses no data."""
    return not claim["spec"].get("volumeName") and not is_bound(claim)


def may_delete_lower(upper: Mapping[str, Any]) -> bool:
    """Report whether no pod uses an upper claim any more, so that its lower claim may be deleted."""
    return PROTECTION not in (upper["metadata"].get("finalizers") or ())


def resize_patch(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch that resizes a lower claim; None: nothing to do."""
    wanted = _request(upper)
    if not wanted or not _is_resize(quantity.amount(wanted), lower):
        return None
    return {"spec": {"resources": {"requests": {"storage": wanted}}}}


def claim_metadata_patch(
    lower: Mapping[str, Any], upper: Mapping[str, Any], *, rules: MetadataRules = DEFAULT_RULES
) -> dict[str, Any] | None:
    """Return a merge patch of labels and annotations that changed on an upper claim, and of our annotations; None: nothing to do.

    Storage drivers of the lower cluster read them. What the lower cluster has set or changed stays.
    """
    below, above = lower["metadata"], upper["metadata"]
    desired = _metadata(upper, rules)
    recorded = of_earlier_release(_KIND, below, above)
    if recorded is not None:
        # Earlier releases, too, left out what the rules deny, so others have set it: by hand, or for another virtual node.
        recorded = {field: [key for key in keys if key in desired[field]] for field, keys in recorded.items()}
    patch = metadata_patch(below, desired, removable={}, recorded=recorded)
    return {"metadata": patch} if patch else None


def status_patch(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch of an upper claim's capacity and resize progress; None: current, or a claim is not bound.

    API servers omit the progress of a resize that has ended, so it is removed from the upper claim. A bound claim always has a
    capacity.
    """
    if not (is_bound(upper) and is_bound(lower)):
        return None
    above, below = upper.get("status") or {}, _status(lower.get("status")) or {}
    change: dict[str, Any] = {}
    for field in (*_PROGRESS, *(("capacity",) if below.get("capacity") else ())):
        if patch := merge_patch(above.get(field) or {}, below.get(field) or {}):
            change[field] = patch if below.get(field) else None
    resizing = list({one["type"]: one for one in below.get("conditions") or ()}.values())
    others = [one for one in above.get("conditions") or () if one["type"] not in _RESIZE_CONDITIONS]
    if [*others, *resizing] != (above.get("conditions") or []):
        change["conditions"] = [*others, *resizing]
    return {"status": change} if change else None


def finalizers_patch(
    claim: Mapping[str, Any], *, add: Collection[str] = (), remove: Collection[str] = ()
) -> dict[str, Any] | None:
    """Return a merge patch for finalizers that requires the claim's resourceVersion; None: nothing to do."""
    metadata = claim["metadata"]
    present = metadata.get("finalizers") or []
    wanted = [one for one in present if one not in remove] + [one for one in add if one not in present]
    if wanted == present:
        return None
    return {"metadata": {"finalizers": wanted or None, "resourceVersion": metadata["resourceVersion"]}}


def _marks(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {names.ANNOTATION_GLOBAL: "true", names.ANNOTATION_UPPER_NAMESPACE: metadata["namespace"]}


def _is_resize(wanted: int, lower: Mapping[str, Any]) -> bool:
    """Report whether to request a size for a lower claim: it is larger, or it replaces a larger one that was not reached.

    Storage that has no room for an expansion never reaches its size. API servers accept a smaller request that is larger than
    the capacity (KEP-1790). If the upper request equals the capacity, the lower cluster has expanded the claim on its own.
    """
    requested = quantity.amount(_request(lower) or "0")
    capacity = ((_status(lower.get("status")) or {}).get("capacity") or {}).get("storage")
    return wanted > requested or (capacity is not None and quantity.amount(capacity) < wanted < requested)


def _request(claim: Mapping[str, Any]) -> str:
    return str(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage") or "")
