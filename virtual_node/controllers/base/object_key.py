"""Keys of the upper objects that pods reference and that are copied to the lower cluster."""

from __future__ import annotations

from dataclasses import dataclass

from controller_runtime import resources
from controller_runtime.resources import Resource

KINDS: dict[str, Resource] = {
    "ConfigMap": resources.CONFIG_MAPS,
    "Secret": resources.SECRETS,
    "ResourceClaim": resources.RESOURCE_CLAIMS,
    "ResourceClaimTemplate": resources.RESOURCE_CLAIM_TEMPLATES,
}


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The kind, namespace and name of an upper object that is copied."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"
