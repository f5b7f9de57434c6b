"""Creates and runs the controllers of the copies that pods do not reference, such as Services and NetworkPolicies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterset.config import SERVICE_CONTROLLERS
from controller_runtime.objects import Object
from virtual_node.controllers.base.caches import INDEX_NAMESPACE, ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.copies.controller import CopyController
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.controllers.copies.surroundings import Surroundings
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate.kinds import NETWORK_POLICIES, SERVICES, Demand, Kind, enabled
from virtual_node.translate.services import has_address

_SETTLE_SECONDS = 2.0


@dataclass(eq=False, repr=False)
class Follow:
    """The controllers of Services and their endpoints, and of the kinds in ``follow`` of a lower cluster."""

    context: ClusterContext
    caches: ClusterCaches
    namespaces: Namespaces
    dependencies: DependencyController
    """Copies the Secrets that followed objects reference."""
    wake: Callable[[str], None]
    """Requeues the upper pod of a uid."""
    _controllers: dict[Kind, CopyController] = field(default_factory=dict)
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new event, whenever the copy of a Service changes or cannot be created."""

    def __post_init__(self) -> None:
        """Create the controllers."""
        with_services = SERVICE_CONTROLLERS in self.context.controllers
        wanted = [
            kind
            for kind in enabled(self.context.config.follow)
            if kind.demand is not Demand.REFERENCES and (kind.setting or with_services)
        ]
        if not wanted:
            return
        caches = self.caches
        surroundings = Surroundings(self.context, caches, namespaces=self.namespaces)
        for kind in wanted:
            is_cached = kind is SERVICES
            self._controllers[kind] = CopyController(
                self.context,
                kind,
                namespaces=self.namespaces,
                surroundings=surroundings,
                dependencies=self.dependencies,
                wake=self.wake,
                upper=caches.upper_services if is_cached else None,
                lower=caches.lower_services if is_cached else None,
            )
        if with_services:
            caches.lower_services.on_change(self._progressed, self._progressed)
            self._controllers[SERVICES].pending.on_change = self._progressed

    async def run(self) -> None:
        """Follow both clusters until cancelled; call it when the caches of pods, namespaces and Services have synced."""
        async with asyncio.TaskGroup() as group:
            for controller in self._controllers.values():
                group.create_task(controller.run())

    async def ready(self, namespace: str, uid: str) -> Problem | None:
        """Return why a new pod must not start yet; None: every NetworkPolicy of its namespace has a current copy.

        A pod that must not start is requeued when every NetworkPolicy has one.
        """
        policies = self._controllers.get(NETWORK_POLICIES)
        return None if policies is None else await policies.pending.wait(namespace, uid)

    async def settled(self, namespace: str) -> None:
        """Wait until the Services of an upper namespace have lower copies, at most ``_SETTLE_SECONDS``.

        A container's environment is fixed when it starts, so the first pod of a namespace must wait for the
        addresses of the Services that existed before the pod.
        """
        if SERVICES not in self._controllers:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                while self._unsettled(namespace):
                    await self._progress.wait()

    def forget_pod(self, uid: str) -> None:
        """Forget a pod that is gone, so that it is not requeued."""
        for controller in self._controllers.values():
            controller.pending.forget_pod(uid)

    def _unsettled(self, namespace: str) -> bool:
        services = self._controllers[SERVICES]
        copies = self.caches.lower_services.store
        return any(
            not has_address(service, copies.get(self.context.lower_key(service.key)))
            and not services.pending.has_failed(service.key)
            and service.metadata.deletion_timestamp is None
            and services.is_wanted(service)
            for service in self.caches.upper_services.store.by_index(INDEX_NAMESPACE, namespace)
        )

    def _progressed(self, _copy: Object | None = None) -> None:
        self._progress.set()
        self._progress = asyncio.Event()
