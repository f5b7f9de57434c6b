"""References of pods to objects that are not mirrored, and the optional controllers that mirror others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model.pod.spec_fields import REFUSED

PV_CONTROLLERS = "PVControllers"
SERVICE_CONTROLLERS = "ServiceControllers"
KNOWN_CONTROLLERS = (PV_CONTROLLERS, SERVICE_CONTROLLERS)
"""The values of ``enableControllers``."""


def not_mirrored(pod: Mapping[str, Any]) -> str:
    """Return why a pod is refused because it names an object that the lower cluster does not get; empty: it is not.

    A name in a pod's spec refers to an object of the upper cluster. If it were copied unchanged, it would
    refer to a different object in the lower cluster. Therefore each reference is copied with its object
    (``dependencies``, ``volumes``), dropped with its field (``lower_spec``) or refused here.
    ``tests/unit/virtual_node/translate/pods/test_references.py`` lists the treatment of each field.
    """
    for volume in pod["spec"].get("volumes") or ():
        where = f"spec.volumes[{volume['name']}]"
        fields = [(f"{where}.{field}", f"volumes.{field}") for field in volume]
        fields += [
            (f"{where}.projected.sources[{field}]", f"volumes.projected.sources.{field}")
            for source in (volume.get("projected") or {}).get("sources") or ()
            for field in source
        ]
        for field, path in fields:
            if path in REFUSED:
                kind, advice = REFUSED[path]
                return (
                    f"Pods with {field} are not mirrored to lower clusters: {kind} stay in the upper cluster; {advice}, "
                    "or keep this pod off virtual nodes"
                )
    return ""
