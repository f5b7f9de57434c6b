"""Finds references of a pod to objects that the lower cluster does not get.

A name in a pod's spec refers to an object of the upper cluster. If it were copied unchanged, it would refer
to a different object in the lower cluster. Therefore each reference is copied with its object
(``dependencies``, ``volumes``), dropped with its field (``lower_pod``) or refused here.
``tests/unit/virtual_node/translate/pods/test_references.py`` lists the treatment of each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def not_mirrored(pod: Mapping[str, Any]) -> str:
    """Return the first reference to an object that the lower cluster does not get; empty if there is none."""
    spec = pod["spec"]
    if spec.get("resourceClaims"):
        return "resourceClaims"
    for volume in spec.get("volumes") or ():
        name = volume["name"]
        if "glusterfs" in volume:
            return f"the Endpoints of volume {name} (glusterfs)"
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "clusterTrustBundle" in source:
                return f"the ClusterTrustBundle of volume {name}"
    return ""
