"""Node affinity as pods have it."""

from __future__ import annotations

from typing import Any

ZONE = {"key": "zone", "operator": "In", "values": ["z"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["a"]}


def requiring(*terms: dict[str, Any]) -> dict[str, Any]:
    """A spec with required terms and a preference."""
    return {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            },
            "podAntiAffinity": {"x": 1},
        }
    }


def excluded(spec: dict[str, Any]) -> list[list[str]]:
    """The nodes that each required term excludes."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return [
        expression["values"]
        for term in required.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
        if expression["operator"] == "NotIn"
    ]
