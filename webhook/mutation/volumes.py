"""Finds the virtual nodes that can reach a pod's volumes. Does no IO."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from clusterset.model import names
from controller_runtime.objects import Object

_LONGEST = 253
"""Maximum characters of the name of a volume or node. A tenant can write a longer text, which names nothing."""
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


def may_pin(claim: Object) -> bool:
    """Report whether a claim has a volume or a node, so that it may limit its pods; others need not be cached."""
    volume, node = _places(claim)
    return bool(volume or node)


def shrink_claim(claim: Object) -> Object:
    """Return a claim with only the fields that ``pinned_to`` reads, at most a kilobyte."""
    volume, node = _places(claim)
    shrunk = claim.with_fields(spec={"volumeName": volume}, status={})
    return shrunk.with_only(annotations=lambda key: key == _SELECTED_NODE and bool(node))


def has_hosts(volume: Object) -> bool:
    """Report whether a volume is limited to nodes by their hostname; others need not be cached."""
    return bool(_hosts({"spec": volume.spec}))


def shrink_volume(volume: Object) -> Object:
    """Return a volume with only the node affinity that ``pinned_to`` reads."""
    values = sorted(_hosts({"spec": volume.spec}))
    expression = {"key": names.LABEL_HOSTNAME, "operator": "In", "values": values}
    affinity = {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    shrunk = volume.with_fields(spec={"nodeAffinity": affinity}, status={})
    return shrunk.with_only()


def _places(claim: Object) -> tuple[str, str]:
    """Return the names of a claim's volume and of its selected node; empty: none, or no valid name."""
    volume = (claim.spec or {}).get("volumeName") or ""
    node = claim.annotations.get(_SELECTED_NODE, "")
    return volume if len(volume) <= _LONGEST else "", node if len(node) <= _LONGEST else ""


def _hosts(volume: Mapping[str, Any]) -> set[str]:
    affinity = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return {
        value
        for term in affinity.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
        if expression.get("key") == names.LABEL_HOSTNAME and expression.get("operator") == "In"
        for value in expression.get("values") or ()
    }
