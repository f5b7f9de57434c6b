"""Combines the caches and controllers of claims and volumes, and creates a new pod's claims."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from controller_runtime.api.pod.conditions import claim_names
from controller_runtime.errors import Unavailable
from controller_runtime.objects import Object
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.controllers.volumes.caches import VolumeCaches
from virtual_node.controllers.volumes.pv_controller import VolumeController
from virtual_node.controllers.volumes.pvc_controller import ClaimController

_SYNC_TIMEOUT = 10.0


class Volumes:
    """Claims and volumes of one lower cluster (``--enable-controllers PVControllers``)."""

    def __init__(
        self,
        context: ClusterContext,
        caches: ClusterCaches,
        *,
        namespaces: Namespaces,
        wake: Callable[[str], None],
    ) -> None:
        """Create the caches and controllers.

        Args:
            context: the two clusters.
            caches: pods and lower nodes.
            namespaces: creates lower namespaces.
            wake: called with the uid of an upper pod whose claims have changed.
        """
        self._caches = VolumeCaches(context)
        self._claims = ClaimController(
            context,
            self._caches,
            namespaces=namespaces,
            pods=caches.pods,
            wake=wake,
        )
        self._volumes = VolumeController(context, self._caches, lower_nodes=caches.lower_nodes)

    async def run(self) -> None:
        """Follow both clusters until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._caches.all():
                group.create_task(informer.run())
            for informer in self._caches.all():
                await informer.wait_synced()
            group.create_task(self._claims.controller.run())
            group.create_task(self._volumes.run())

    async def ensure(self, upper: Object, upper_pod: dict[str, Any]) -> list[Problem]:
        """Call ``ClaimController.ensure``, after waiting a limited time until the caches have synced.

        Raises:
            ApiError: claims or volumes cannot be read for now; the caller retries.
        """
        if not claim_names(upper_pod):
            return []
        for informer in self._caches.all():
            if not await informer.wait_synced(_SYNC_TIMEOUT):
                # Waiting without limit would block a worker that other pods need.
                raise Unavailable(f"{informer.name} cannot be read yet: {informer.last_error}")
        return await self._claims.ensure(upper, upper_pod)

    def forget_pod(self, uid: str) -> None:
        """Remove an upper pod that is gone from the users of its claims."""
        self._claims.forget_pod(uid)
