"""Applies JSON merge patches and strategic merge patches, as an API server does. No IO.

Source: ``k8s.io/apimachinery/pkg/util/strategicpatch``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

_MERGE_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "podIPs": "ip",
    "hostIPs": "ip",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "schedulingGates": "name",
    "ownerReferences": "uid",
}
"""Lists that a strategic patch merges. Source: patchMergeKey tags of core/v1."""
_SETS = {"finalizers"}
"""Lists of strings that a strategic patch merges."""


def merged(stored: Any, patch: Any, *, strategic: bool = False) -> Any:
    """Return a value with a JSON or ``strategic`` merge patch applied; neither argument changes."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(stored) if isinstance(stored, Mapping) else {}
    if strategic and "$patch" in patch:
        return {key: value for key, value in patch.items() if key != "$patch"}
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif strategic and isinstance(value, list) and field in _MERGE_KEYS:
            result[field] = _merged_list(result.get(field) or [], value, key=_MERGE_KEYS[field])
        elif strategic and field in _SETS:
            stored_items = result.get(field) or []
            result[field] = _order(stored_items, list(dict.fromkeys(value)), stored_items)
        elif strategic and field.startswith("$deleteFromPrimitiveList/"):
            name = field.partition("/")[2]
            result[name] = [item for item in result.get(name) or () if item not in value]
        elif isinstance(value, Mapping):
            result[field] = merged(result.get(field), value, strategic=strategic)
        elif not field.startswith("$"):
            result[field] = value
    return result


def _merged_list(stored: list[Any], patch: list[Any], *, key: str) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    # API servers accept a pull secret without a name, and store it without the field.
    result = {item.get(key): item for item in stored}
    for item in patch:
        if item.get("$patch") == "delete":
            result.pop(item[key], None)
        else:
            result[item[key]] = merged(result.get(item[key]), item, strategic=True)
    changed = [item[key] for item in patch if item.get("$patch") != "delete"]
    order = _order([item.get(key) for item in stored], list(dict.fromkeys(changed)), result)
    return [result[name] for name in order]


def _order(stored: list[Any], changed: list[Any], present: Iterable[Any]) -> list[Any]:
    """Return the keys in the server's order.

    Keys in the patch keep the patch's order. Others keep theirs and come before the first key of the patch that
    followed them in the stored list, or at the end.
    """
    position = {name: number for number, name in enumerate(stored)}
    existing, moved = set(present), set(changed)
    others = deque(name for name in stored if name in existing and name not in moved)
    result: list[Any] = []
    for name in changed:
        while others and name in position and position[others[0]] < position[name]:
            result.append(others.popleft())
        result.append(name)
    return [*result, *others]
