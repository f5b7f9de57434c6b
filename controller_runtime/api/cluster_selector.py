"""The ``clusterSelector`` annotation: scheduling fields that belong to the lower cluster's scheduler.

JSON ``{"nodeSelector": …, "affinity": {"nodeAffinity": …}, "tolerations": […]}``, every member optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MEMBERS: dict[str, type] = {"nodeSelector": dict, "affinity": dict, "tolerations": list}


def parse(text: str) -> dict[str, Any]:
    """Read the annotation.

    Raises:
        ValueError: not such JSON; names the member that is wrong.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"clusterSelector: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("clusterSelector: expected a JSON object")
    for member, kind in _MEMBERS.items():
        value = found.get(member)
        if value is not None and not isinstance(value, kind):
            raise ValueError(
                f"clusterSelector.{member}: expected {'an object' if kind is dict else 'a list'}"
            )
    selector = found.get("nodeSelector") or {}
    if not all(isinstance(value, str) for value in selector.values()):
        raise ValueError("clusterSelector.nodeSelector: values must be strings")
    node_affinity = (found.get("affinity") or {}).get("nodeAffinity")
    if node_affinity is not None and not isinstance(node_affinity, dict):
        raise ValueError("clusterSelector.affinity.nodeAffinity: expected an object")
    if not all(isinstance(toleration, dict) for toleration in found.get("tolerations") or ()):
        raise ValueError("clusterSelector.tolerations: expected a list of objects")
    return {member: found[member] for member in _MEMBERS if found.get(member)}


def of(annotations: Mapping[str, str] | None, key: str) -> dict[str, Any] | None:
    """The selector of an object's annotations; None when there is none, or none that can be read."""
    text = (annotations or {}).get(key)
    if not text:
        return None
    try:
        return parse(text)
    except ValueError:
        return None
