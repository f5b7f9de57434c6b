"""Lists the contents of a lower namespace: all listable resources of the lower cluster, including custom ones.

Deleting a namespace deletes its contents, so no object may be missed. Every namespaced resource in discovery
is listed, as metadata only. If a resource cannot be listed, the contents count as unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller_runtime.client.client import Client
from controller_runtime.client.collection import METADATA_ONLY, SIZE, ListPages
from controller_runtime.errors import ApiError, NotFound, ResponseTooLarge
from controller_runtime.resources import Resource
from virtual_node.translate.objects import namespaces

_HOLDS_DATA = ("", "persistentvolumeclaims")
_NAMED = 5
"""The search ends after this many objects of other owners; logs name them."""
_LONGEST_NAME = 300
"""Maximum number of characters kept of each name."""
_DEADLINE = 300.0
"""Seconds for one namespace. A hostile lower cluster may list kinds and pages without end."""


class UnknownError(Exception):
    """The contents of the namespace cannot be determined; the message says why."""


@dataclass(slots=True)
class Found:
    """The contents of a namespace."""

    others: list[str] = field(default_factory=list)
    """``pods web``, …: some objects of other owners. Claims count as such even if they are ours, because they
    hold data. The namespace is deleted only if this is empty."""
    pods: int = 0
    """Number of our pods."""


@dataclass(eq=False, repr=False)
class Leftovers:
    """Lists the contents of lower namespaces."""

    lower: Client
    cluster_id: str
    """Identity of the upper cluster; objects labelled with it are ours."""

    async def find(self, namespace: str, *, upper_name: str) -> Found:
        """Return the contents of an upper namespace's lower namespace; stop after a few objects of other owners.

        Raises:
            UnknownError: something could not be listed, or listing takes too long.
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
        others = namespaces.others(
            items,
            group=resource.group,
            resource=resource.plural,
            cluster_id=self.cluster_id,
            upper_name=upper_name,
        )
        kind = (resource.group, resource.plural)
        if kind == _HOLDS_DATA:
            others = [item["metadata"]["name"] for item in items]
        found.others += [f"{resource.qualified} {name}"[:_LONGEST_NAME] for name in others[:_NAMED]]
        if kind == ("", "pods"):
            found.pods += len(items) - len(others)

    async def _resources(self) -> AsyncIterator[Resource]:
        """Yield every namespaced resource that can be listed, in its preferred version."""
        groups = [("", "v1", "/api/v1")]
        for group in _entries(await self._get("/apis"), "groups"):
            version = group["preferredVersion"]["version"]
            groups.append((group["name"], version, f"/apis/{group['name']}/{version}"))
        for group_name, version, path in groups:
            for entry in _entries(await self._get(path), "resources"):
                if entry.get("namespaced") and "list" in entry.get("verbs", ()) and "/" not in entry["name"]:
                    yield Resource(group_name, version, entry["name"], entry["kind"])

    async def _pages(self, resource: Resource, namespace: str) -> AsyncIterator[list[dict[str, Any]]]:
        pages = ListPages({}, size=SIZE)
        while True:
            try:
                page = await self._get(resource.path(namespace=namespace), pages.params)
            except ResponseTooLarge as error:
                pages.shrink(error)
                continue
            except NotFound:
                if not resource.group:
                    raise  # kinds of the core group always exist, so this response is not from an API server
                return
            yield _entries(page, "items")
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            pages.follow(token)
            await asyncio.sleep(pages.pause)

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        headers = None if params is None else METADATA_ONLY
        return await self.lower.read(path, params=params, headers=headers, flow="namespaces")


def _entries(answer: Any, key: str) -> list[dict[str, Any]]:
    """Return the list under that key (null: empty); reject other JSON, such as a proxy's response."""
    if not isinstance(answer, dict) or key not in answer:
        raise UnknownError(f"the lower cluster's answer has no {key!r}")
    entries: list[dict[str, Any]] = answer[key] or []
    return entries
