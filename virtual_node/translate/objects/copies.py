"""Copies of ConfigMaps, Secrets, ResourceClaims and ResourceClaimTemplates in the lower cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import chain
from typing import Any

import msgspec

from clusterset.model import names
from controller_runtime.objects import Object
from virtual_node.translate.base.metadata import copied, map_patch
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.base.ownership import ownership_labels
from virtual_node.translate.objects import resource_claims

_DATA = ("data", "binaryData")
_DIGEST = "dataDigest"
"""Field of a cached copy, in place of the values of its data."""
_LARGE = 1024
"""Bytes of data above which a cached copy has a digest."""
_CONTENT = ("data", "binaryData", "immutable", "type")
_NOT_OF_COPIES = (names.ANNOTATION_PLACEHOLDER, names.LABEL_TOKEN_OF, names.ANNOTATION_TOKEN_EXPIRES)
"""Keys that a copy must not have. The first marks a placeholder. Earlier releases copied the others from
users' objects."""
_TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type, not a token


def lower_copy(upper: Mapping[str, Any], options: PodOptions) -> dict[str, Any]:
    """Return the lower object to create for an upper object.

    A legacy token Secret becomes an Opaque Secret, because the lower cluster's token controller deletes
    Secrets of the token type if their ServiceAccount does not exist in that cluster.
    """
    metadata = upper["metadata"]
    rules = options.policy.of(metadata["namespace"]).metadata
    kept = copied(upper["kind"], metadata, rules)
    copy: dict[str, Any] = {
        "apiVersion": upper.get("apiVersion", "v1"),
        "kind": upper["kind"],
        "metadata": {
            "name": metadata["name"],
            "namespace": options.namespace_map(metadata["namespace"]),
            "labels": {**kept["labels"], **ownership_labels(options.owner, metadata["uid"])},
            "annotations": {
                **kept["annotations"],
                names.ANNOTATION_GLOBAL: "true",
                names.ANNOTATION_UPPER_NAMESPACE: metadata["namespace"],
            },
        },
    }
    for field in _CONTENT:
        if field in upper:
            copy[field] = upper[field]
    if upper["kind"] in resource_claims.KINDS:
        copy["spec"] = resource_claims.lower_spec(
            upper,
            device_classes=options.device_classes,
            cluster_id=options.owner.cluster_id,
            rules=rules,
        )
    if copy.get("type") == _TOKEN_TYPE:
        copy["type"] = "Opaque"
    return copy


def placeholder(kind: str, *, upper_namespace: str, options: PodOptions) -> dict[str, Any]:
    """Return an object without data that reserves a lower name while the upper cluster has no such object.

    The caller sets its name.

    Args:
        kind: ``ConfigMap`` or ``Secret``.
        upper_namespace: the namespace of the missing upper object.
        options: translation options.
    """
    owner = options.owner
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "namespace": options.namespace_map(upper_namespace),
            "labels": {names.LABEL_UPPER_CLUSTER: owner.cluster_id, names.LABEL_NODE: owner.node_name},
            "annotations": {
                names.ANNOTATION_GLOBAL: "true",
                names.ANNOTATION_PLACEHOLDER: "true",
                names.ANNOTATION_UPPER_NAMESPACE: upper_namespace,
            },
        },
    }


def without_values(copy: Object) -> Object:
    """Return a copy for a cache, with a digest in place of large values; ``copy_patch`` reads both forms.

    The upper object is cached, too. Token Secrets are kept as they are, because their entries are compared one by one.
    """
    size = sum(copy.field_size(field) for field in _DATA)
    if size < _LARGE or names.LABEL_TOKEN_OF in copy.labels:
        return copy
    fields = {field: content for field in _DATA if (content := copy.field(field))}
    names_only = {field: dict.fromkeys(content, "") for field, content in fields.items()}
    return copy.with_fields(**names_only, **{_DIGEST: _digest(fields)})


def must_be_replaced(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Report whether a claim or template was copied from an earlier upper object; a patch would be refused."""
    before, after = (one["metadata"].get("labels") or {} for one in (lower, desired))
    key = names.LABEL_UPPER_UID
    return desired["kind"] in resource_claims.KINDS and before.get(key) != after.get(key)


def copy_patch(
    lower: Mapping[str, Any], desired: Mapping[str, Any], upper: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return a merge patch that makes a lower copy equal to the desired one; None: they are equal.

    Labels and annotations that other clients added in the lower cluster are kept. Data that they added is
    removed. Labels and annotations that the desired copy leaves out are removed if they have the upper object's value,
    because an earlier release or configuration copied them.

    Args:
        lower: the copy.
        desired: what it should be.
        upper: its upper object; None: there is none.
    """
    patch: dict[str, Any] = {}
    is_changed = _DIGEST in lower and lower[_DIGEST] != _digest(desired)
    for field in _DATA:
        current, wanted = lower.get(field) or {}, desired.get(field) or {}
        if is_changed and (current or wanted) if _DIGEST in lower else current != wanted:
            patch[field] = {**{key: None for key in current if key not in wanted}, **wanted} or None
    for field in ("immutable", "type"):
        if field in desired and lower.get(field) != desired[field]:
            patch[field] = desired[field]
    if lower.get("immutable") and not desired.get("immutable"):
        patch["immutable"] = None
    metadata = {}
    for field in ("labels", "annotations"):
        current = lower["metadata"].get(field) or {}
        above = ((upper or {}).get("metadata") or {}).get(field) or {}
        copied_before = (key for key, value in above.items() if current.get(key) == value)
        change = map_patch(current, desired["metadata"].get(field), chain(_NOT_OF_COPIES, copied_before))
        if field == "labels" and names.LABEL_NODE in current:
            # Virtual nodes of one upper cluster share copies, so the name of the first one stays.
            change.pop(names.LABEL_NODE, None)
        if change:
            metadata[field] = change
    if metadata:
        patch["metadata"] = metadata
    return patch or None


def _digest(content: Mapping[str, Any]) -> str:
    data = [content.get(field) or {} for field in _DATA]
    return hashlib.blake2b(msgspec.json.encode(data, order="sorted"), digest_size=16).hexdigest()
