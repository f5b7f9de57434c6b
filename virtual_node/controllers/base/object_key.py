"""Keys of the upper objects that pods reference and that are copied to the lower cluster."""

from __future__ import annotations

from dataclasses import dataclass

from controller_runtime.resources import Resource
from virtual_node.translate.kinds import REFERENCED


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The kind, namespace and name of an upper object that is copied."""

    kind: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def resource(self) -> Resource:
        """Return the resource of the kind."""
        return REFERENCED[self.kind].resource

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"
