"""Finds the virtual nodes that can reach a pod's volumes. Does no IO."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from controller_runtime.api import names

_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_REQUIRED = "required"


def pinned_to(
    claim: Mapping[str, Any],
    *,
    volume: Callable[[str], Mapping[str, Any] | None],
    virtual_nodes: Collection[str],
) -> list[str]:
    """Return the virtual nodes that can reach a claim's volume; empty if the volume is not limited to virtual nodes.

    Args:
        claim: the PersistentVolumeClaim.
        volume: returns the PersistentVolume of a name; None if it does not exist.
        virtual_nodes: names of all virtual nodes.
    """
    name = (claim.get("spec") or {}).get("volumeName")
    if name and (bound := volume(name)) is not None:
        found = _hosts(bound)
        if found:
            return sorted(node for node in found if node in virtual_nodes)
    selected = ((claim.get("metadata") or {}).get("annotations") or {}).get(_SELECTED_NODE)
    return [selected] if selected is not None and selected in virtual_nodes else []


def _hosts(volume: Mapping[str, Any]) -> set[str]:
    affinity = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return {
        value
        for term in affinity.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
        if expression.get("key") == names.LABEL_HOSTNAME and expression.get("operator") == "In"
        for value in expression.get("values") or ()
    }
