"""The ``clusterSelector`` annotation: scheduling fields that belong to the lower cluster's scheduler.

JSON ``{"nodeSelector": …, "affinity": {"nodeAffinity": …}, "tolerations": […]}``, every member optional. A fourth
member of ours, ``upperNodeSelectorTerms``, is there only where terms of a required node affinity ask different things
of the *upper* node: one term for each required term, to be fulfilled by the virtual node. ``resolve`` applies it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from controller_runtime.api import matching

UPPER_TERMS = "upperNodeSelectorTerms"
_MEMBERS: dict[str, type] = {"nodeSelector": dict, "affinity": dict, "tolerations": list, UPPER_TERMS: list}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


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
    if not all(isinstance(term, dict) for term in found.get(UPPER_TERMS) or ()):
        raise ValueError(f"clusterSelector.{UPPER_TERMS}: expected a list of objects")
    return {member: found[member] for member in _MEMBERS if found.get(member)}


def resolve(selector: Mapping[str, Any], *, node_name: str, node_labels: Mapping[str, str]) -> dict[str, Any]:
    """The selector as one virtual node's lower cluster is to apply it.

    Of required terms that go with a term for the upper node only those are kept whose upper term this node fulfils;
    one that asks nothing more of the lower node makes the whole requirement fulfilled.

    Args:
        selector: as ``parse`` gives it.
        node_name: the virtual node.
        node_labels: its labels in the upper cluster.
    """
    upper_terms = selector.get(UPPER_TERMS)
    resolved = {member: value for member, value in selector.items() if member != UPPER_TERMS}
    if not upper_terms:
        return resolved
    affinity = dict(resolved.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    terms = (node_affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    kept = [
        term
        for term, upper in zip(terms, upper_terms, strict=False)
        if not upper or matching.matches_term(upper, name=node_name, labels=node_labels)
    ]
    if any(not term for term in kept):
        node_affinity.pop(_REQUIRED, None)
    else:
        # Without any, the pod should not be here: a list of one empty term matches no lower node.
        node_affinity[_REQUIRED] = {"nodeSelectorTerms": kept or [{}]}
    affinity["nodeAffinity"] = node_affinity
    if not node_affinity:
        affinity.pop("nodeAffinity")
    resolved["affinity"] = affinity
    return {member: value for member, value in resolved.items() if value}


def of(annotations: Mapping[str, str] | None, key: str) -> dict[str, Any] | None:
    """The selector of an object's annotations; None when there is none, or none that can be read."""
    text = (annotations or {}).get(key)
    if not text:
        return None
    try:
        return parse(text)
    except ValueError:
        return None
