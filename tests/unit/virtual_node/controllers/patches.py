"""How an API server reads the patches that controllers send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(there: Any, patch: Any) -> Any:
    """JSON merge patch, and of strategic ones the lists by name or type that pods have."""
    if isinstance(patch, list):
        return _merged_list(there or [], patch)
    if not isinstance(patch, Mapping):
        return patch
    result = dict(there) if isinstance(there, Mapping) else {}
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        else:
            result[field] = merged(result.get(field), value)
    return result


def _merged_list(there: list[Any], patch: list[Any]) -> list[Any]:
    if patch and isinstance(patch[0], Mapping) and patch[0].get("$patch") == "replace":
        return patch[1:]
    by = "type" if all(isinstance(one, Mapping) and "type" in one for one in patch) else "name"
    if not patch or not all(isinstance(one, Mapping) and by in one for one in patch):
        return patch
    result = {one[by]: one for one in there}
    for one in patch:
        if one.get("$patch") == "delete":
            result.pop(one[by], None)
        else:
            result[one[by]] = merged(result.get(one[by]), one)
    return list(result.values())
