"""Computes the JSON patch (RFC 6902) of a pod's mutation, which replaces whole fields. Does no IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIELDS = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "schedulerName",
    "resourceClaims",
    "containers",
    "initContainers",
)
"""Fields of the spec that the mutation may change."""


def pod_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operations that change pod ``before`` into ``after``; empty if they are equal."""
    operations: list[dict[str, Any]] = []
    for name in _FIELDS:
        old, new = (before.get("spec") or {}).get(name), (after.get("spec") or {}).get(name)
        path = f"/spec/{name}"
        if old is not None and new is None:
            operations.append({"op": "remove", "path": path})
        elif old != new:
            operations.append({"op": "add" if old is None else "replace", "path": path, "value": new})
    return operations + _annotations(before.get("metadata") or {}, after.get("metadata") or {})


def _annotations(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    old, new = before.get("annotations"), after.get("annotations")
    if old == new or not new:
        return []
    if not old:
        return [{"op": "add", "path": "/metadata/annotations", "value": dict(new)}]
    return [
        {
            "op": "replace" if key in old else "add",
            "path": f"/metadata/annotations/{key.replace('~', '~0').replace('/', '~1')}",
            "value": value,
        }
        for key, value in new.items()
        if old.get(key) != value
    ]
