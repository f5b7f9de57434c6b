"""References of pods to objects that are not mirrored, and the optional controllers that mirror others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PV_CONTROLLERS = "PVControllers"
SERVICE_CONTROLLERS = "ServiceControllers"
KNOWN_CONTROLLERS = (PV_CONTROLLERS, SERVICE_CONTROLLERS)
"""The values of ``enableControllers``."""


def not_mirrored(pod: Mapping[str, Any]) -> str:
    """Return the first reference to an object that the lower cluster does not get; empty if there is none.

    A name in a pod's spec refers to an object of the upper cluster. If it were copied unchanged, it would
    refer to a different object in the lower cluster. Therefore each reference is copied with its object
    (``dependencies``, ``volumes``), dropped with its field (``lower_pod``) or refused here.
    ``tests/unit/virtual_node/translate/pods/test_references.py`` lists the treatment of each field.
    """
    spec = pod["spec"]
    for volume in spec.get("volumes") or ():
        name = volume["name"]
        if "glusterfs" in volume:
            return f"the Endpoints of volume {name} (glusterfs)"
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "clusterTrustBundle" in source:
                return f"the ClusterTrustBundle of volume {name}"
    return ""
