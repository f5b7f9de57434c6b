"""Names the fields that overrides change in a pod, and reads these names from the lower pod. No IO."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery.decoding import decode

_SHOWN = 10
"""Maximum number of fields of one override, because annotations are limited."""
_MOST = 100
"""Maximum number of changes that are read. Users of the lower cluster can change the annotation."""


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the paths of at most ten differing fields of metadata and spec, such as ``spec.containers[app].image``."""
    found = (
        path for part in ("metadata", "spec") for path in _differing(before.get(part), after.get(part), part)
    )
    shown = list(itertools.islice(found, _SHOWN))
    more = sum(1 for _ in found)
    return [*shown, f"and {more} more"] if more else shown


def recorded_changes(lower_pod: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return override and field for each change that a lower pod's annotation lists; empty if it is malformed."""
    annotations = (lower_pod.get("metadata") or {}).get("annotations") or {}
    try:
        recorded = decode(annotations.get(names.ANNOTATION_OVERRIDES, "{}"))
    except ValueError:
        return []
    if not isinstance(recorded, dict):
        return []
    return [
        (name, field)
        for name, fields in recorded.items()
        for field in (fields if isinstance(fields, list) else ())
        if isinstance(field, str)
    ][:_MOST]


def _differing(before: Any, after: Any, path: str) -> Iterator[str]:
    if before == after:
        return
    first, second = _by_name(before), _by_name(after)
    if first is None or second is None:
        yield path
        return
    is_list = isinstance(before, list)
    for key in {**first, **second}:
        nested = f"{path}[{key}]" if is_list or not key.isalnum() else f"{path}.{key}"
        yield from _differing(first.get(key), second.get(key), nested)


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """Return a map, or a list of named entries as a map; None: neither."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and all(isinstance(one, Mapping) and "name" in one for one in value):
        return {str(one["name"]): one for one in value}
    return None
