"""Selects the version of an API group that an API server serves, for clients that can read several versions.

Clusters do not upgrade at the same time, and an aggregated API may serve an older version than its API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Unpack

from controller_runtime.client.requests import RequestOptions
from controller_runtime.client.verbs import Verbs
from controller_runtime.errors import Forbidden, NotFound
from controller_runtime.resources import Resource

_TIMEOUT = 8.0
"""Seconds to read which versions are served; as long as readers of metrics wait for their lists."""
_LONGEST_LIST = 200
"""Characters of the versions in an error, because an API server may report any number."""


def choose(group: str, served: Sequence[str], known: Sequence[str]) -> str:
    """Return the first known version that is served.

    Args:
        group: the API group.
        served: versions that the API server serves.
        known: versions that the caller can read, the newest first.

    Raises:
        NotFound: none of them is served.
    """
    for version in known:
        if version in served:
            return version
    versions = ", ".join(served)[:_LONGEST_LIST] or "none"
    raise NotFound(f"the API server serves {group} in version {versions}, not {' or '.join(known)}", code=404)


@dataclass(eq=False, repr=False)
class ServedGroup:
    """Reads lists of one API group in the newest version that the API server serves.

    Discovery is read before the first list, and again when the API server no longer serves the selected version.
    """

    client: Verbs
    group: str
    _: KW_ONLY
    known: tuple[str, ...]
    """Versions that the caller can read, the newest first. The last is used if discovery is forbidden."""

    def __post_init__(self) -> None:
        self._version = ""
        self._discovery = asyncio.Lock()

    async def read(self, collection: str, **options: Unpack[RequestOptions]) -> dict[str, Any]:
        """Return the JSON of a collection, such as ``nodes``.

        Raises:
            NotFound: the API server serves no known version.
            ApiError: another error of the request.
        """
        version = await self._discover(replacing="")
        try:
            return await self._read(version, collection, options)
        except NotFound:
            current = await self._discover(replacing=version)
            if current == version:
                raise
            return await self._read(current, collection, options)

    async def _read(self, version: str, collection: str, options: RequestOptions) -> dict[str, Any]:
        return await self.client.read(f"/apis/{self.group}/{version}/{collection}", **options)

    async def _discover(self, *, replacing: str) -> str:
        """Return the selected version; read discovery if none is selected, or the one to replace still is."""
        async with self._discovery:  # concurrent lists share the request
            if self._version in ("", replacing):
                self._version = ""
                self._version = choose(self.group, await self._served(), self.known)
            return self._version

    async def _served(self) -> list[str]:
        try:
            answer = await self.client.read(f"/apis/{self.group}", timeout=_TIMEOUT, flow="discovery")
        except Forbidden:  # the lists need only the rights to their resources
            return [self.known[-1]]
        versions = answer.get("versions")
        listed = versions if isinstance(versions, list) else []
        return [str(one.get("version")) for one in listed if isinstance(one, dict)]


async def first_served(client: Verbs, known: Sequence[Resource]) -> Resource:
    """Return the first version of a resource that the API server serves. A group can serve its resources in different versions.

    Raises:
        NotFound: it serves none of them.
        ApiError: another error of the requests.
    """
    for resource in known:
        path = f"/apis/{resource.group}/{resource.version}"
        try:
            answer = await client.read(path, timeout=_TIMEOUT, flow="discovery")
        except NotFound:
            continue
        listed = answer.get("resources")
        served = listed if isinstance(listed, list) else []
        if any(isinstance(one, dict) and one.get("name") == resource.plural for one in served):
            return resource
    raise NotFound(f"the API server does not serve {known[0].qualified}", code=404)


METRICS = "metrics.k8s.io"
METRICS_VERSIONS = ("v1", "v1beta1")
"""Versions of the metrics API, whose types are the same. metrics-server 0.9 serves only v1beta1."""


def metrics_api(client: Verbs) -> ServedGroup:
    """Return the metrics API of a cluster (Source: k8s.io/metrics ``pkg/apis/metrics``)."""
    return ServedGroup(client, METRICS, known=METRICS_VERSIONS)
