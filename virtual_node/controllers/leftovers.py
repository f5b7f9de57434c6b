"""What is still in a lower namespace: everything the lower cluster can list there, its own kinds included.

Deleting a namespace deletes what is in it, so nothing may be overlooked: every namespaced resource that
discovery names is listed, as metadata only. A resource that we may not list makes the answer unknown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller_runtime.client import Client
from controller_runtime.errors import ApiError, NotFound
from controller_runtime.resources import Resource
from virtual_node.translate import namespaces

_METADATA_ONLY = {
    "Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
}
_HOLDS_DATA = ("", "persistentvolumeclaims")


class UnknownError(Exception):
    """It cannot be told what is in the namespace; the text says why."""


@dataclass(slots=True)
class Found:
    """What is in a namespace."""

    others: list[str] = field(default_factory=list)
    """``pods web``, …: objects of others, and claims, which hold data whoever made them."""
    pods: int = 0
    """Pods of ours that have not ended yet."""


class Leftovers:
    """Looks into lower namespaces."""

    def __init__(self, lower: Client, cluster_id: str) -> None:
        """Set up.

        Args:
            lower: client of the lower cluster.
            cluster_id: of the upper cluster; what carries it is ours.
        """
        self._lower = lower
        self._cluster_id = cluster_id

    async def find(self, namespace: str) -> Found:
        """What is in a lower namespace.

        Raises:
            UnknownError: something could not be listed.
        """
        found = Found()
        seen: set[tuple[str, str]] = set()
        try:
            async for resource in self._resources():
                kind = (resource.group, resource.plural)
                if kind in seen:
                    continue
                seen.add(kind)
                items = await self._list(resource, namespace)
                others = namespaces.others(
                    items,
                    group=resource.group,
                    resource=resource.plural,
                    cluster_id=self._cluster_id,
                )
                if kind == _HOLDS_DATA:
                    others = [item["metadata"]["name"] for item in items]
                found.others += [f"{resource.qualified} {name}" for name in others]
                if kind == ("", "pods"):
                    found.pods = len(items) - len(others)
        except ApiError as error:
            raise UnknownError(str(error)) from error
        return found

    async def _resources(self) -> AsyncIterator[Resource]:
        """Every namespaced resource that can be listed, in its preferred version."""
        groups = [("", "v1", "/api/v1")]
        for group in _entries(await self._get("/apis"), "groups"):
            version = group["preferredVersion"]["version"]
            groups.append((group["name"], version, f"/apis/{group['name']}/{version}"))
        for group_name, version, path in groups:
            for entry in _entries(await self._get(path), "resources"):
                if entry.get("namespaced") and "list" in entry.get("verbs", ()) and "/" not in entry["name"]:
                    yield Resource(group_name, version, entry["name"], entry["kind"])

    async def _list(self, resource: Resource, namespace: str) -> list[Mapping[str, Any]]:
        items: list[Mapping[str, Any]] = []
        params = {"limit": "500"}
        while True:
            try:
                page = msgspec.json.decode(
                    await self._lower.request(
                        "GET",
                        resource.path(namespace=namespace),
                        params=params,
                        headers=_METADATA_ONLY,
                        flow="namespaces",
                    )
                )
            except NotFound:
                if not resource.group:
                    raise  # Kubernetes' own kinds are always there: this is another server's answer
                return items
            items += _entries(page, "items")
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return items
            params["continue"] = token

    async def _get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(
            await self._lower.request("GET", path, flow="namespaces")
        )
        return answer


def _entries(answer: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """A list that every such answer has, be it null. Other JSON, from somebody in between, tells of nothing."""
    if key not in answer:
        raise UnknownError(f"the lower cluster's answer has no {key!r}")
    return answer[key] or []
