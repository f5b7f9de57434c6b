"""The lower copies of ConfigMaps and Secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from clusterset.model import names
from controller_runtime.objects import Object
from virtual_node.translate.base.view import Translation, View

_DATA = ("data", "binaryData")
_DIGEST = "dataDigest"
"""Field of a cached copy, in place of the values of its data."""
_LARGE = 1024
"""Bytes of data above which a cached copy has a digest."""
_CONTENT = ("data", "binaryData", "immutable", "type")
_TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type, not a token


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
    """Return a copy for a cache, with a digest in place of large values; ``changes`` reads both forms.

    The upper object is cached, too. Token Secrets are kept as they are, because their entries are compared one by one.
    """
    size = sum(copy.field_size(field) for field in _DATA)
    if size < _LARGE or names.LABEL_TOKEN_OF in copy.labels:
        return copy
    fields = {field: content for field in _DATA if (content := copy.field(field))}
    names_only = {field: dict.fromkeys(content, "") for field, content in fields.items()}
    return copy.with_fields(**names_only, **{_DIGEST: _digest(fields)})


def changes(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
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
