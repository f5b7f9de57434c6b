"""What is still in a lower namespace: everything the lower cluster can list there, its own kinds included.

Deleting a namespace deletes what is in it, so nothing may be overlooked: every namespaced resource that
discovery names is listed, as metadata only. A resource that we may not list makes the answer unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller_runtime.client.client import Client
from controller_runtime.client.list_pages import SIZE, ListPages
from controller_runtime.errors import ApiError, NotFound, ResponseTooLarge
from controller_runtime.resources import Resource
from virtual_node.translate.objects import namespaces

_METADATA_ONLY = {
    "Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
}
_HOLDS_DATA = ("", "persistentvolumeclaims")
_NAMED = 5
"""Objects of others after which the search ends; they are named in logs."""
_LONGEST_NAME = 300
"""Characters kept of each."""
_DEADLINE = 300.0
"""Seconds for one namespace. A hostile lower cluster may name ever more kinds and pages."""


class UnknownError(Exception):
    """It cannot be told what is in the namespace; the text says why."""


@dataclass(slots=True)
class Found:
    """What is in a namespace."""

    others: list[str] = field(default_factory=list)
    """``pods web``, …: some objects of others, and claims, which hold data whoever made them."""
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

    async def find(self, namespace: str, *, upper_name: str) -> Found:
        """List what is in a lower namespace that was made for an upper one, until some objects of others are found.

        Raises:
            UnknownError: something could not be listed, or all of it takes too long.
        """
        found = Found()
        seen: set[tuple[str, str]] = set()
        try:
            async with asyncio.timeout(_DEADLINE):
                async for resource in self._resources():
                    kind = (resource.group, resource.plural)
                    if kind in seen:
                        continue
                    seen.add(kind)
                    async for items in self._pages(resource, namespace):
                        self._add(found, resource, items, upper_name)
                        if len(found.others) >= _NAMED:
                            return found
        except ApiError as error:
            raise UnknownError(str(error)) from error
        except TimeoutError as error:
            raise UnknownError(f"listing what it holds takes more than {_DEADLINE:.0f} s") from error
        return found

    def _add(self, found: Found, resource: Resource, items: list[dict[str, Any]], upper_name: str) -> None:
        """Add a page of objects to what was found."""
        others = namespaces.others(
            items,
            group=resource.group,
            resource=resource.plural,
            cluster_id=self._cluster_id,
            upper_name=upper_name,
        )
        kind = (resource.group, resource.plural)
        if kind == _HOLDS_DATA:
            others = [item["metadata"]["name"] for item in items]
        found.others += [f"{resource.qualified} {name}"[:_LONGEST_NAME] for name in others[:_NAMED]]
        if kind == ("", "pods"):
            found.pods += len(items) - len(others)

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

    async def _pages(self, resource: Resource, namespace: str) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the objects of one kind, page by page."""
        pages = ListPages({}, size=SIZE)
        while True:
            try:
                page = await self._get(resource.path(namespace=namespace), pages.params)
            except ResponseTooLarge as error:
                pages.shrink(error)
                continue
            except NotFound:
                if not resource.group:
                    raise  # Kubernetes' own kinds are always there: this is another server's answer
                return
            yield _entries(page, "items")
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            pages.follow(token)
            await asyncio.sleep(pages.pause)

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        headers = None if params is None else _METADATA_ONLY
        return await self._lower.read(path, params=params, headers=headers, flow="namespaces")


def _entries(answer: Any, key: str) -> list[dict[str, Any]]:
    """A list that every such answer has, be it null. Other JSON, from somebody in between, tells of nothing."""
    if not isinstance(answer, dict) or key not in answer:
        raise UnknownError(f"the lower cluster's answer has no {key!r}")
    entries: list[dict[str, Any]] = answer[key] or []
    return entries
