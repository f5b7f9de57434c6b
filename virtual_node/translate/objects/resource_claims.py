"""Copies of ResourceClaims and ResourceClaimTemplates in the lower cluster, and the devices allocated to them.

A copy's spec has the lower cluster's DeviceClasses. Its status belongs to the lower cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from clusterset.model import names
from virtual_node.translate.base.fields import is_name
from virtual_node.translate.base.metadata import copied
from virtual_node.translate.base.view import Translation, UntranslatableError, View, of_spec

CLAIM = "ResourceClaim"
TEMPLATE = "ResourceClaimTemplate"
KINDS = (CLAIM, TEMPLATE)
_MOST_DEVICES = 64
"""Maximum number of devices in the annotation. A pod's annotations share 256 KiB."""
_LENGTHS = {"request": 128, "driver": 63, "pool": 253, "device": 63}
"""Maximum lengths of a device's names in resource.k8s.io; of a request with a subrequest, 127."""


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
