"""Keys of the upper ConfigMaps and Secrets that pods reference."""

from __future__ import annotations

from dataclasses import dataclass

from controller_runtime import resources
from controller_runtime.resources import Resource

KINDS: dict[str, Resource] = {"ConfigMap": resources.CONFIG_MAPS, "Secret": resources.SECRETS}


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The kind, namespace and name of an upper ConfigMap or Secret."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"
