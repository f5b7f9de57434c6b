"""How an API server reads merge patches and strategic merge patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MERGE_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "podIPs": "ip",
    "hostIPs": "ip",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
}
"""Lists that a strategic patch merges; every other one is replaced. Source: patchMergeKey tags of core/v1."""


def merged(there: Any, patch: Any, *, strategic: bool) -> Any:
    """A value with a patch applied; neither argument is changed."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(there) if isinstance(there, Mapping) else {}
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif strategic and field in _MERGE_KEYS and isinstance(value, list):
            result[field] = _merged_list(result.get(field) or [], value, by=_MERGE_KEYS[field])
        elif isinstance(value, Mapping):
            result[field] = merged(result.get(field), value, strategic=strategic)
        else:
            result[field] = value
    return result


def _merged_list(there: list[Any], patch: list[Any], *, by: str) -> list[Any]:
    if any(one.get("$patch") == "replace" for one in patch):
        return [one for one in patch if one.get("$patch") != "replace"]
    result = {one[by]: one for one in there}
    for one in patch:
        if one.get("$patch") == "delete":
            result.pop(one[by], None)
        else:
            result[one[by]] = merged(result.get(one[by]), one, strategic=True)
    return list(result.values())
