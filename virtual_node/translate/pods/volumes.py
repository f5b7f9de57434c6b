"""The PersistentVolumeClaims that a pod's volumes use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def claim_names(pod: Mapping[str, Any]) -> list[str]:
    """Return the claims of a pod's volumes, each once; a generic ephemeral volume's is ``<pod>-<volume>``."""
    found: dict[str, None] = {}
    for volume in pod["spec"].get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            found[claim.get("claimName", "")] = None
        elif "ephemeral" in volume:
            found[f"{pod['metadata']['name']}-{volume['name']}"] = None
    return [name for name in found if name]


def with_claims(spec: dict[str, Any], pod: Mapping[str, Any]) -> None:
    """Rewrite generic ephemeral volumes of a lower pod spec, in place, to claims that the upper cluster created.

    The upper pod owns such a claim. If the volume stayed as it is, the lower cluster would create another
    claim.
    """
    volumes = spec.get("volumes")
    if not volumes or not any("ephemeral" in volume for volume in volumes):
        return
    spec["volumes"] = [
        {
            "name": volume["name"],
            "persistentVolumeClaim": {"claimName": f"{pod['metadata']['name']}-{volume['name']}"},
        }
        if "ephemeral" in volume
        else volume
        for volume in volumes
    ]
