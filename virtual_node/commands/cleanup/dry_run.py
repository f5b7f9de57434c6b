"""Implements ``cleanup --dry-run``: the same steps on a cluster that is only read.

Objects that a step would delete are hidden from later steps. Only reads reach the cluster, so rights to read
suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.collection import ObjectList
from controller_runtime.resources import Resource


def dry_run_client(client: Client, report: Callable[[str], None]) -> Client:
    """Return a client that reads through ``client`` and reports writes instead of sending them.

    Args:
        client: client of the cluster.
        report: called with a line for every object that would be deleted or changed.
    """
    # _DryRunClient has only the verbs that cleanup needs, so that any other verb fails instead of writing.
    return cast("Client", _DryRunClient(client, report))


class _DryRunClient:
    def __init__(self, client: Client, report: Callable[[str], None]) -> None:
        self.cluster = client.cluster
        self.get = client.get
        self._client = client
        self._report = report
        self._gone: set[str] = set()
        """UIDs of objects that a real cleanup would have removed so far."""

    async def list(self, resource: Resource, **which: Any) -> ObjectList:
        listed = await self._client.list(resource, **which)
        if resource is resources.PODS:  # Pods that are already terminating would be gone after the wait.
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
        self, resource: Resource, name: str, *, namespace: str | None = None, uid: str = "", **_more: Any
    ) -> None:
        if not uid:  # Deleted by name only, so the object may not exist; then get raises NotFound.
            uid = (await self.get(resource, name, namespace=namespace))["metadata"]["uid"]
        self._gone.add(uid)
        self._say(resource, name, namespace, "deleted")

    async def patch(
        self, resource: Resource, name: str, _patch: Any, *, namespace: str | None = None, **_more: Any
    ) -> dict[str, Any]:
        self._say(resource, name, namespace, "changed")
        return {}

    def _say(self, resource: Resource, name: str, namespace: str | None, what: str) -> None:
        where = f"{namespace}/" if namespace else ""
        self._report(f"{self.cluster}: {resource.kind} {where}{name} {what}")
