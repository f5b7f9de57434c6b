"""Lists the overrides of a pod's lower cluster that changed its lower pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model.overrides.changes import recorded_changes
from clusterset.model.policy.findings import containers
from virtual_node.commands.diagnose.facts import PodFacts


def changes(facts: PodFacts) -> list[str]:
    """Return ``OVERRIDE: FIELD`` per changed field, and both values of images; empty if the lower pod was not read."""
    lower = facts.lower or {}
    before, after = _images(facts.pod), _images(lower)
    return [
        f"{name}: {field}"
        + (f": {before[field]} → {after[field]}" if field in before and field in after else "")
        for name, field in recorded_changes(lower)
    ]


def _images(pod: Mapping[str, Any]) -> dict[str, str]:
    return {f"{where}.image": str(one.get("image")) for where, one in containers(pod.get("spec") or {})}
