"""Rewrites generic ephemeral volumes of lower pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_claims(spec: dict[str, Any], pod: Mapping[str, Any]) -> None:
    """Rewrite generic ephemeral volumes of a lower pod spec, in place, to claims that the upper cluster created.

    The upper pod owns such a claim. If the volume stayed as it is, the lower cluster would create a claim of
    its own.
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
