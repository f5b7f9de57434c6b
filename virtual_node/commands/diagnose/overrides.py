"""Lists the overrides of a pod's lower cluster that changed its lower pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime.api import names
from controller_runtime.api.decoding import decode
from controller_runtime.api.policy.findings import containers
from virtual_node.commands.diagnose.facts import PodFacts

_MOST = 100
"""Maximum number of lines. Users of the lower cluster can change the annotation."""


def changes(facts: PodFacts) -> list[str]:
    """Return ``NAME: FIELD`` for each changed field, and both values of images; empty if the lower pod was not read."""
    lower = facts.lower or {}
    annotations = (lower.get("metadata") or {}).get("annotations") or {}
    try:
        recorded = decode(annotations.get(names.ANNOTATION_OVERRIDES, "{}"))
    except ValueError:
        return []
    if not isinstance(recorded, dict):
        return []
    before, after = _images(facts.pod), _images(lower)
    found = [
        f"{name}: {field}"
        + (f": {before[field]} → {after[field]}" if field in before and field in after else "")
        for name, fields in recorded.items()
        for field in (fields if isinstance(fields, list) else ())
        if isinstance(field, str)
    ]
    return found[:_MOST]


def _images(pod: Mapping[str, Any]) -> dict[str, str]:
    return {f"{where}.image": str(one.get("image")) for where, one in containers(pod.get("spec") or {})}
