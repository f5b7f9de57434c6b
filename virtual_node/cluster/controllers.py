"""The controllers of one lower cluster, connected with each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from clusterset.model.pod.eligibility import PV_CONTROLLERS
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.dependencies.allocations import Allocations
from virtual_node.controllers.dependencies.config_maps_and_secrets import DependencyController
from virtual_node.controllers.dependencies.service_account_tokens import IdentityController
from virtual_node.controllers.events import kinds
from virtual_node.controllers.events.mirror import EventMirror
from virtual_node.controllers.follow.facade import Follow
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.controllers.pods.controller import PodController
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.controllers.services.controller import ServiceController
from virtual_node.controllers.services.environment import ServiceLinks
from virtual_node.controllers.volumes.facade import Volumes


@dataclass(eq=False, repr=False)
class ClusterControllers:
    """The controllers that mirror pods and what pods need; those of Nodes and Leases are not included.

    Attributes:
        pods: mirrors the pods.
        volumes: mirrors claims and volumes; None: not enabled. The caller runs it before the pods are listed.
        informers: informers of the controllers that are not in ``ClusterCaches``; the caller runs them.
    """

    context: ClusterContext
    caches: ClusterCaches
    node_uid: Callable[[str], str]
    """Returns the uid of a virtual node's Node; empty: unknown."""

    def __post_init__(self) -> None:
        """Create the controllers without any IO."""
        context, caches = self.context, self.caches

        def wake(uid: str) -> None:
            # ``pods`` is assigned later, because it is created from objects that get ``wake``.
            self.pods.enqueue(uid)

        self._namespaces = Namespaces(context, caches)
        self.volumes = (
            Volumes(context, caches, namespaces=self._namespaces, wake=wake)
            if PV_CONTROLLERS in context.controllers
            else None
        )
        self._services = ServiceController(context, caches, namespaces=self._namespaces)
        self._dependencies = DependencyController(context, caches, namespaces=self._namespaces, wake=wake)
        allocations = Allocations(
            context,
            caches,
            dependencies=self._dependencies,
            changed=lambda uid: self.pods.devices_changed(uid),  # noqa: PLW0108 - as in ``wake``
        )
        self.informers = allocations.informers
        status = StatusWriter(context, devices=allocations.record)
        self._follow = Follow(
            context, caches, namespaces=self._namespaces, dependencies=self._dependencies, wake=wake
        )
        self._identities = IdentityController(context, caches, node_uid=self.node_uid)
        creator = PodCreator(
            context,
            namespaces=self._namespaces,
            dependencies=self._dependencies,
            identities=self._identities,
            volumes=self.volumes,
            service_links=ServiceLinks(context, caches, settled=self._services.settled),
            status=status,
            follow=self._follow,
        )
        self.pods = PodController(context, caches.pods, creator=creator, status=status)
        claims = () if self.volumes is None else (self.volumes.claims,)
        self._mirror = EventMirror(context, (kinds.pods(caches.pods), *claims))

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start all controllers except ``volumes``; call it when the caches have synced and the pods are adopted."""
        for name, work in (
            ("pods", self.pods.controller.run()),
            ("namespaces", self._namespaces.run()),
            ("dependencies", self._dependencies.run()),
            ("identities", self._identities.controller.run()),
            ("events", self._mirror.run()),
            ("services", self._services.run()),
            ("follow", self._follow.run()),
        ):
            group.create_task(work, name=f"{self.context.name} {name}")
        if period := self.context.settings.full_resync_period:
            group.create_task(self.pods.resync(period))
