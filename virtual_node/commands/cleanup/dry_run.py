"""``cleanup --dry-run``: the same steps, over a cluster that is only read.

What a step deletes is gone for the steps after it, as it would be: they look at what would be left. Nothing but reading
ever reaches the cluster, so rights to read suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from controller_runtime import resources
from controller_runtime.client.client import Client, ObjectList
from controller_runtime.resources import Resource


def rehearsed(client: Client, tell: Callable[[str], None]) -> Client:
    """A client that reads with another one, and tells what it would write.

    Args:
        client: of the cluster.
        tell: told of every object that would be deleted or changed, a line at a time.
    """
    # It has the verbs that cleaning up needs, and no other: one that is forgotten here cannot write.
    return cast("Client", _Rehearsal(client, tell))


class _Rehearsal:
    def __init__(self, client: Client, tell: Callable[[str], None]) -> None:
        self.cluster = client.cluster
        self._client = client
        self._tell = tell
        self._gone: set[str] = set()
        """UIDs of what would have been deleted by now."""

    async def get(self, resource: Resource, name: str, **where: Any) -> dict[str, Any]:
        return await self._client.get(resource, name, **where)

    async def list(self, resource: Resource, **which: Any) -> ObjectList:
        listed = await self._client.list(resource, **which)
        if resource is resources.PODS:  # who ends already has ended, once everybody is waited for
            self._gone.update(pod.uid for pod in listed.items if pod.metadata.deletion_timestamp)
        left = [one for one in listed.items if one.uid not in self._gone]
        return ObjectList(left, listed.resource_version)

    async def read(self, path: str, **more: Any) -> dict[str, Any]:
        answer = await self._client.read(path, **more)
        if "items" in answer:
            items = answer["items"] or ()
            answer["items"] = [one for one in items if one["metadata"]["uid"] not in self._gone]
        return answer

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> None:
        if uid is None:  # goes by its name alone, and may not be there
            uid = str((await self._client.get(resource, name, namespace=namespace))["metadata"]["uid"])
        self._gone.add(uid)
        self._say(resource, name, namespace, "deleted")

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> dict[str, Any]:
        self._say(resource, name, namespace, "changed")
        return {}

    def _say(self, resource: Resource, name: str, namespace: str | None, what: str) -> None:
        where = f"{namespace}/" if namespace else ""
        self._tell(f"{self.cluster}: {resource.kind} {where}{name} {what}")
