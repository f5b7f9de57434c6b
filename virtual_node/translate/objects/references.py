"""The lower copies of the objects that pods reference: ConfigMaps, Secrets, ResourceClaims and their templates.

The spec of a copied ResourceClaim has the lower cluster's DeviceClasses. Its status belongs to the lower cluster, and names
the devices that are allocated to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from clusterset.model import names
from clusterset.model.pod import api_access
from controller_runtime.objects import Object
from virtual_node.translate.base.fields import is_name
from virtual_node.translate.base.metadata import copied
from virtual_node.translate.base.view import Translation, UntranslatableError, View, of_spec

_DATA = ("data", "binaryData")
_DIGEST = "dataDigest"
"""Field of a cached copy, in place of the values of its data."""
_OF_ENTRIES = "entries"
"""The digest of a copy with a digest for each entry."""
_LARGE = 1024
"""Bytes of data above which a cached copy has a digest."""
_CONTENT = ("data", "binaryData", "immutable", "type")
_TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type, not a token
CLAIM = "ResourceClaim"
TEMPLATE = "ResourceClaimTemplate"
KINDS = (CLAIM, TEMPLATE)
_MOST_DEVICES = 64
"""Maximum number of devices in the annotation. A pod's annotations share 256 KiB."""
_LENGTHS = {"request": 128, "driver": 63, "pool": 253, "device": 63}
"""Maximum lengths of a device's names in resource.k8s.io; of a request with a subrequest, 127."""


def lower_data(upper: Mapping[str, Any], _view: View) -> Translation:
    """Return the copy of a ConfigMap or Secret.

    A legacy token Secret becomes an Opaque Secret, because the lower cluster's token controller deletes
    Secrets of the token type if their ServiceAccount does not exist in that cluster.
    """
    content = {field: upper[field] for field in _CONTENT if field in upper}
    if content.get("type") == _TOKEN_TYPE:
        content["type"] = "Opaque"
    return Translation(content)


def without_values(copy: Object) -> Object:
    """Return a copy for a cache, with a digest in place of large values; ``data_changes`` reads both forms.

    The upper object is cached, too. A Secret with the tokens of one pod gets a digest of each token, which ``entry_digests``
    reads. Shared tokens and certificates are kept, because they are read again.
    """
    of = copy.labels.get(names.LABEL_TOKEN_OF, "")
    if of and (api_access.is_shared(of) or names.ANNOTATION_CERTIFICATE_TIMES in copy.annotations):
        return copy
    if of:
        return copy.with_fields(data=entry_digests({"data": copy.field("data")}), **{_DIGEST: _OF_ENTRIES})
    size = sum(copy.field_size(field) for field in _DATA)
    if size < _LARGE:
        return copy
    fields = {field: content for field in _DATA if (content := copy.field(field))}
    names_only = {field: dict.fromkeys(content, "") for field, content in fields.items()}
    return copy.with_fields(**names_only, **{_DIGEST: _digest(fields)})


def entry_digests(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each entry of a Secret's data, of the Secret itself or as ``without_values`` caches it."""
    data: dict[str, str] = secret.get("data") or {}
    if secret.get(_DIGEST) == _OF_ENTRIES:
        return data
    return {
        key: hashlib.blake2b(str(value).encode(), digest_size=16).hexdigest() for key, value in data.items()
    }


def data_changes(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch of the content. Data that other clients added in the lower cluster is removed."""
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
    return patch


def _digest(content: Mapping[str, Any]) -> str:
    data = [content.get(field) or {} for field in _DATA]
    return hashlib.blake2b(msgspec.json.encode(data, order="sorted"), digest_size=16).hexdigest()


def lower_claim(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of a ResourceClaim or ResourceClaimTemplate.

    Claims that the lower cluster generates from a template get the labels and annotations in the template.
    Reserved keys of this project are left out, so that users cannot mark a generated claim as our copy.

    Raises:
        UntranslatableError: it requests access to devices that other pods use (``adminAccess``).
    """
    spec, above = upper.get("spec") or {}, upper["metadata"]
    claim = spec if upper["kind"] == CLAIM else spec.get("spec") or {}
    if _has_admin_access((claim.get("devices") or {}).get("requests")):
        what = f"{upper['kind']} {above['namespace']}/{above['name']}"
        raise UntranslatableError(
            f"{what} requests adminAccess, which is not given to pods of other clusters; remove it from the request",
            reason="ResourceClaimRefused",
        )
    below = _with_classes(claim, view.device_classes)
    if upper["kind"] == CLAIM:
        return of_spec(below)
    kept = copied(CLAIM, spec.get("metadata") or {}, view.rules_of(above["namespace"]))
    kept["labels"][names.LABEL_GENERATED_FOR] = view.cluster_id
    return of_spec({"metadata": kept, "spec": below})


def was_made_for_another(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Report whether a claim or template was copied from an earlier upper object; a patch would be refused."""
    before, after = (one["metadata"].get("labels") or {} for one in (lower, desired))
    return before.get(names.LABEL_UPPER_UID) != after.get(names.LABEL_UPPER_UID)


def allocated(claim: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return request, driver, pool and device of each device that is allocated to a lower claim."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return [
        {field: str(result.get(field, ""))[:most] for field, most in _LENGTHS.items()}
        for result in (devices.get("results") or ())[:_MOST_DEVICES]
    ]


def record(devices: Mapping[str, list[dict[str, str]]]) -> str:
    """Return an annotation's value: at most 64 devices of a pod, by the claim's name in the pod; empty: none."""
    left, kept = _MOST_DEVICES, {}
    for name, found in sorted(devices.items()):
        if found[:left] and is_name(name):
            kept[name] = found[:left]
            left -= len(kept[name])
    return msgspec.json.encode(kept).decode() if kept else ""


def generated_names(lower_pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a lower pod's ResourceClaims, by their name in the pod."""
    generated = (lower_pod.get("status") or {}).get("resourceClaimStatuses") or ()
    found = {status["name"]: status.get("resourceClaimName") or "" for status in generated}
    for entry in lower_pod["spec"].get("resourceClaims") or ():
        if name := entry.get("resourceClaimName"):
            found[entry["name"]] = name
    return {name: claim for name, claim in found.items() if claim}


def _with_classes(claim: Mapping[str, Any], device_classes: Mapping[str, str]) -> dict[str, Any]:
    devices = claim.get("devices") or {}
    if "requests" not in devices:
        return dict(claim)
    requests = _renamed(devices["requests"], device_classes)
    return {**claim, "devices": {**devices, "requests": requests}}


def _renamed(value: Any, device_classes: Mapping[str, str]) -> Any:
    """Replace DeviceClasses at any depth: a request has one (``exactly``), or several (``firstAvailable``)."""
    if isinstance(value, list):
        return [_renamed(one, device_classes) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: device_classes.get(one, one)
        if key == "deviceClassName" and isinstance(one, str)
        else _renamed(one, device_classes)
        for key, one in value.items()
    }


def _has_admin_access(value: Any) -> bool:
    if isinstance(value, list):
        return any(_has_admin_access(one) for one in value)
    if not isinstance(value, dict):
        return False
    return bool(value.get("adminAccess")) or any(_has_admin_access(one) for one in value.values())
