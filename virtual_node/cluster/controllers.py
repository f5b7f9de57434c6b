"""The controllers of one lower cluster, connected with each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from clusterset.model.pod.eligibility import PV_CONTROLLERS
from controller_runtime.workqueue.queue import WorkQueue
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.copies.allocations import Allocations
from virtual_node.controllers.copies.facade import Follow
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.controllers.events import kinds
from virtual_node.controllers.events.mirror import EventMirror
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.controllers.pods.controller import PodController
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.refusals import Refusals
from virtual_node.controllers.pods.service_links import ServiceLinks
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.controllers.pods.updater import PodUpdater
from virtual_node.controllers.tokens.service_account_tokens import IdentityController
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
        # The queue of the pods comes first, because all that a pod waits for adds the pod to it. Namespaces take turns,
        # so one tenant's thousands of pods do not delay others.
        queue: WorkQueue[str] = context.queue(
            "pods",
            workers=context.settings.pod_sync_workers,
            first_delay=0.1,
            flow=caches.pods.upper_namespace,
        )
        self._namespaces = Namespaces(context, caches)
        self.volumes = (
            Volumes(context, caches, namespaces=self._namespaces, wake=queue.add)
            if PV_CONTROLLERS in context.controllers
            else None
        )
        self._dependencies = DependencyController(
            context, caches, namespaces=self._namespaces, wake=queue.add
        )
        allocations = Allocations(
            context,
            caches,
            dependencies=self._dependencies,
            changed=queue.add,
        )
        self.informers = allocations.informers
        status = StatusWriter(context, devices=allocations.record)
        self._follow = Follow(
            context, caches, namespaces=self._namespaces, dependencies=self._dependencies, wake=queue.add
        )
        self._identities = IdentityController(context, caches, node_uid=self.node_uid)
        links = ServiceLinks(context, caches, self._dependencies, settled=self._follow.settled)
        creator = PodCreator(
            context,
            namespaces=self._namespaces,
            dependencies=self._dependencies,
            identities=self._identities,
            volumes=self.volumes,
            service_links=links,
            status=status,
            follow=self._follow,
            refusals=Refusals(queue.add_after),
        )
        updater = PodUpdater(context, self._dependencies, links)
        self.pods = PodController(
            context, caches.pods, queue, creator=creator, updater=updater, status=status
        )
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
            ("follow", self._follow.run()),
        ):
            group.create_task(work, name=f"{self.context.name} {name}")
        if period := self.context.settings.full_resync_period:
            group.create_task(self.pods.resync(period))
