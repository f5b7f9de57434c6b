"""Creates and runs the controllers of the kinds that ``follow`` of one lower cluster names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.dependencies.config_maps_and_secrets import DependencyController
from virtual_node.controllers.follow.controller import FollowController
from virtual_node.controllers.follow.kinds import KINDS, NETWORK_POLICIES
from virtual_node.controllers.follow.surroundings import Surroundings
from virtual_node.controllers.namespaces.controller import Namespaces


@dataclass(eq=False, repr=False)
class Follow:
    """The controllers of the kinds in ``follow`` of a lower cluster."""

    context: ClusterContext
    caches: ClusterCaches
    namespaces: Namespaces
    dependencies: DependencyController
    """Copies the Secrets that followed objects reference."""
    wake: Callable[[str], None]
    """Requeues the upper pod of a uid."""
    _controllers: dict[str, FollowController] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the controllers."""
        wanted = self.context.config.follow
        if not wanted:
            return
        surroundings = Surroundings(self.context, self.caches, namespaces=self.namespaces)
        self._controllers = {
            kind.resource.plural: FollowController(
                self.context,
                kind,
                namespaces=self.namespaces,
                surroundings=surroundings,
                dependencies=self.dependencies,
                wake=self.wake,
            )
            for kind in KINDS
            if kind.setting in wanted
        }

    async def run(self) -> None:
        """Follow both clusters until cancelled; call it when the caches of pods and namespaces have synced."""
        async with asyncio.TaskGroup() as group:
            for controller in self._controllers.values():
                group.create_task(controller.run())

    async def ready(self, namespace: str, uid: str) -> Problem | None:
        """Return why a new pod must not start yet; None: every NetworkPolicy of its namespace has a current copy.

        A pod that must not start is requeued when every NetworkPolicy has one.
        """
        policies = self._controllers.get(NETWORK_POLICIES.resource.plural)
        return None if policies is None else await policies.pending.wait(namespace, uid)

    def forget_pod(self, uid: str) -> None:
        """Forget a pod that is gone, so that it is not requeued."""
        for controller in self._controllers.values():
            controller.pending.forget_pod(uid)
