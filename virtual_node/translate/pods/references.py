"""References of a pod to other objects that are neither copied to the lower cluster nor replaced there. Pure.

A name in a pod's spec means an object of the upper cluster. Carried to the lower cluster as it is, it would mean another
object. So each reference to an object is copied with its object (``dependencies``, ``claims``), dropped with its field
(``pod_down``), or refused here. ``tests/unit/virtual_node/translate/pods/test_references.py`` says which, field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def not_mirrored(pod: Mapping[str, Any]) -> str:
    """Return the first reference to an object that the lower cluster does not get; empty when there is none."""
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
