"""Finds the workload of a pod from its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEMPLATE_HASH = "pod-template-hash"
"""Label of a Deployment's pods. Their ReplicaSet's name is the Deployment's name and this hash."""


def owner_of(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of the workload that a pod belongs to.

    Args:
        metadata: metadata of the pod.

    Returns:
        The pod's controller; the Deployment if the controller is a Deployment's ReplicaSet; without a
            controller "Pod" and the pod's name.
    """
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            kind, name = str(owner.get("kind") or ""), str(owner.get("name") or "")
            template = (metadata.get("labels") or {}).get(_TEMPLATE_HASH)
            if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
                return "Deployment", name.removesuffix(f"-{template}")
            return kind, name
    return "Pod", str(metadata["name"])
