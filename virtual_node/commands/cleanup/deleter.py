"""Deletes objects, and reports which were deleted and which could not be deleted."""

from __future__ import annotations

from collections.abc import Callable

from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Conflict, Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource


class Deleter:
    """Deletes objects of one cluster."""

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        """Create without any IO; ``say`` is called with a line for each result."""
        self._client = client
        self._say = say
        self._reported: set[str] = set()

    async def delete_named(self, resource: Resource, name: str, *, namespace: str = "") -> None:
        """Delete an object by its name, which only our installation uses; ignore a missing object."""
        try:
            await self._client.delete(resource, name, namespace=namespace or None)
        except NotFound:
            return
        self._say(f"{resource.kind} {namespace}{'/' if namespace else ''}{name} removed")

    async def delete(self, resource: Resource, found: Object, *, grace: int | None = None) -> None:
        """Delete the object with this UID, if it exists; report server errors and Forbidden once, raise others."""
        try:
            await self._client.delete(
                resource,
                found.name,
                namespace=found.namespace or None,
                uid=found.uid,
                grace_period_seconds=grace,
            )
        except (NotFound, Conflict):
            return
        except ApiError as error:
            if error.code < 500 and not isinstance(error, Forbidden):
                raise
            line = f"{resource.kind} {found.key}: {error}"
            if line not in self._reported:  # Deletion is retried, so each error repeats.
                self._reported.add(line)
                self._say(line)
