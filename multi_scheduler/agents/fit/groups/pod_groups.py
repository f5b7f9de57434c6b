"""Follows scheduler-plugins' PodGroup objects, where this API is installed, for the minimum of each group."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from clusterset.model.pod.groups import MOST_MEMBERS, Group
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object

_LOOK = 60.0
"""Seconds between checks whether the API is installed and readable."""


class PodGroups:
    """The PodGroup objects of the upper cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.informer = Informer(
            client, resources.POD_GROUPS, transform=_shrink, name="pod-groups", is_minor=True
        )

    async def run(self) -> None:
        """Wait until the API can be read, then follow it until cancelled."""
        while True:
            try:
                await self._client.exists(resources.POD_GROUPS)
            except (ApiError, ConfigError):
                await asyncio.sleep(_LOOK)
            else:
                break
        await self.informer.run()

    def resolve(self, group: Group | None) -> Group | None:
        """Return a group with the minimum of its PodGroup object, unless the pod declares another minimum.

        Returns:
            None: no group, or a minimum that is unknown until PodGroups have been read.
        """
        if group is None or group.source != "PodGroup" or group.minimum or group.problem:
            return group
        if not self.informer.has_synced:
            return None
        found = self.informer.store.get(f"{group.namespace}/{group.name}")
        if found is None:
            return replace(group, problem="its PodGroup does not exist")
        minimum = (found.spec or {}).get("minMember")
        if not isinstance(minimum, int) or not 1 <= minimum <= MOST_MEMBERS:
            return replace(
                group, problem=f"minMember of its PodGroup is not a number from 1 to {MOST_MEMBERS}"
            )
        return replace(group, minimum=minimum)


def _shrink(found: Object) -> Object:
    minimum = (found.spec or {}).get("minMember")
    return found.without("status").with_fields(spec={"minMember": minimum}).with_only()
