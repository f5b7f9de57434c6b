"""Combines the caches and controllers of claims and volumes, and creates a new pod's claims."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clusterset.model.pod.conditions import claim_names
from controller_runtime.errors import Unavailable
from controller_runtime.objects import Object
from virtual_node.controllers import events
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.events import MirroredKind
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.volumes.caches import VolumeCaches
from virtual_node.controllers.volumes.pv_controller import VolumeController
from virtual_node.controllers.volumes.pvc_controller import ClaimController

_SYNC_TIMEOUT = 10.0


@dataclass(eq=False, repr=False)
class Volumes:
    """Claims and volumes of one lower cluster (``--enable-controllers PVControllers``)."""

    context: ClusterContext
    caches: ClusterCaches
    namespaces: Namespaces
    wake: Callable[[str], None]
    """Called with the uid of an upper pod whose claims have changed."""

    def __post_init__(self) -> None:
        """Create the caches and controllers."""
        self._informers = informers = VolumeCaches(self.context)
        self._claims = ClaimController(self.context, informers, self.namespaces, self.caches.pods, self.wake)
        self._volumes = VolumeController(self.context, informers, self.caches.lower_nodes)

    @property
    def claims(self) -> MirroredKind:
        """Return the claims, of which events are mirrored."""
        found = self._informers
        return events.claims(self.context, lower=found.lower_claims, upper=found.upper_claims)

    async def run(self) -> None:
        """Follow both clusters until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.all():
                group.create_task(informer.run())
            for informer in self._informers.all():
                await informer.wait_synced()
            group.create_task(self._claims.controller.run())
            group.create_task(self._volumes.run())

    async def ensure(self, upper: Object, upper_pod: dict[str, Any]) -> list[Problem]:
        """Wait a limited time until the caches have synced; return the result of ``ClaimController.ensure``.

        Raises:
            ApiError: claims or volumes cannot be read for now; the caller retries.
        """
        if not claim_names(upper_pod):
            return []
        for informer in self._informers.all():
            if not await informer.wait_synced(_SYNC_TIMEOUT):
                # Waiting without limit would block a worker that other pods need.
                raise Unavailable(f"{informer.name} cannot be read yet: {informer.last_error}")
        return await self._claims.ensure(upper, upper_pod)

    def adopt(self, upper: Object, upper_pod: dict[str, Any]) -> None:
        """Register a pod, of which an earlier process created the lower pod, as a user of its claims."""
        if claim_names(upper_pod):
            self._claims.adopt(upper, upper_pod)

    def forget_pod(self, uid: str) -> None:
        """Remove an upper pod that is gone from the users of its claims."""
        self._claims.forget_pod(uid)
