"""The pod controller with everything that it uses, between two clusters in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Literal

import structlog

from clusterset.config import PV_CONTROLLERS, SERVICE_CONTROLLERS, NodeConfig, VolumeConfig
from clusterset.config import Cluster as LowerCluster
from clusterset.model import names
from clusterset.model.autoscaling import Autoscaling
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.pod.resource_claims import ResourceClaimsConfig
from clusterset.model.policy.config import Policy
from controller_runtime.workqueue.queue import WorkQueue
from tests import objects
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.cluster import Cluster
from virtual_node.config import types as configuration
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.certificates import CertificateController
from virtual_node.controllers.copies.facade import Follow
from virtual_node.controllers.copies.references import Allocations, DependencyController
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.pods.api_services import ApiServices, UpperEndpoint
from virtual_node.controllers.pods.controller import PodController
from virtual_node.controllers.pods.creation_delays import CreationDelays
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.lower_owners import LowerOwners
from virtual_node.controllers.pods.refusals import Refusals
from virtual_node.controllers.pods.service_links import ServiceLinks
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.controllers.pods.updater import PodUpdater
from virtual_node.controllers.pods.wait_reporter import WaitReporter
from virtual_node.controllers.tokens import IdentityController
from virtual_node.controllers.volumes.facade import Volumes
from virtual_node.translate.objects import namespaces

CLUSTER = "upper-1"
KEY = "shop/web"
"""The pod of a test that gives no other name."""


async def _settled(_namespace: str) -> None:
    """Wait for no Services; a mock would take a tenth of the time of a scene's set-up."""


class Scene:
    """Two clusters, one virtual node ``vn``, and pods that are mirrored between them."""

    def __init__(
        self,
        upper: Cluster,
        lower: Cluster,
        *,
        node: str = "vn",
        namespaces: NamespaceConfig | None = None,
        policy: Policy | None = None,
        on_unschedulable: Literal["Wait", "Reject"] = "Wait",
        autoscaling: Autoscaling | None = None,
        takes_claims: bool = False,
        cluster: str = "lower1",
        volumes: VolumeConfig | None = None,
        **settings: Any,
    ) -> None:
        self.upper, self.lower, self.node = upper, lower, node
        self.events: list[tuple[str, str]] = []
        recorder: Any = SimpleNamespace(
            event=lambda _involved, _kind, reason, message: self.events.append((reason, message))
        )
        clients: Any = (upper, lower)
        controllers = [PV_CONTROLLERS, SERVICE_CONTROLLERS] if volumes is not None else [SERVICE_CONTROLLERS]
        settings = {"enable_serviceaccount": False, "enable_controllers": controllers, **settings}
        self.context = context = ClusterContext(
            name=cluster, cluster_id=CLUSTER, upper=clients[0], lower=clients[1],
            settings=configuration.Config(**settings),
            config=LowerCluster(
                name=cluster, kubeconfig="k", node_name=node, volumes=volumes or VolumeConfig(),
                namespaces=namespaces or NamespaceConfig(), policy=policy or Policy(),
                on_unschedulable=on_unschedulable, resource_claims=ResourceClaimsConfig(enabled=takes_claims),
            ),
            nodes={node: NodeConfig(name=node, autoscaling=autoscaling)}, recorder=recorder, log=structlog.get_logger(),
        )  # fmt: skip
        self.all_caches = caches = ClusterCaches(context)
        self.caches = caches.pods

        queue: WorkQueue[str] = context.queue(
            "pods",
            workers=context.settings.pod_sync_workers,
            first_delay=0.1,
            flow=caches.pods.upper_namespace,
        )
        self.namespaces = Namespaces(context, caches)
        self.dependencies = DependencyController(context, caches, namespaces=self.namespaces, wake=queue.add)
        allocations = Allocations(context, caches, dependencies=self.dependencies, changed=queue.add)
        self.identities = IdentityController(
            context, caches, node_uid=lambda name: upper.the("nodes", name)["metadata"]["uid"]
        )
        self.certificates = CertificateController(
            context,
            caches,
            node_uid=lambda name: upper.the("nodes", name)["metadata"]["uid"],
            wake=queue.add,
        )
        status = StatusWriter(
            context, devices=allocations.record, missing_secrets=self.dependencies.missing_secrets
        )
        self.api_services = ApiServices(
            context,
            caches,
            self.namespaces,
            # An IP address with port 443, for which nothing is created in the lower cluster.
            UpperEndpoint(clients[0], context.settings.kubernetes_service_url or "https://192.0.2.1"),
        )
        links = ServiceLinks(
            context, caches, self.dependencies, settled=_settled, api_services=self.api_services
        )
        self.volumes = (
            Volumes(context, caches, namespaces=self.namespaces, wake=queue.add)
            if volumes is not None
            else None
        )
        follow = Follow(
            context, caches, namespaces=self.namespaces, dependencies=self.dependencies, wake=queue.add
        )
        creator = PodCreator(
            context, namespaces=self.namespaces, dependencies=self.dependencies, identities=self.identities,
            certificates=self.certificates,
            volumes=self.volumes, service_links=links, follow=follow,
            delays=CreationDelays(
                context, status, Refusals(queue.add_after), WaitReporter(context, caches.lower_nodes)
            ),
        )  # fmt: skip
        updater = PodUpdater(context, self.dependencies, links)
        self.pods = PodController(
            context, self.caches, caches.lower_nodes, queue, creator=creator, updater=updater, status=status
        )
        self.owners = LowerOwners(context, self.caches, self.namespaces)
        self.informers = [
            *caches.deciding(),
            *caches.claims.values(),
            *allocations.informers,
            *self.api_services.informers,
        ]

    async def run(self) -> None:
        """Mirror until cancelled, in the order of a real start."""
        async with asyncio.TaskGroup() as group:
            for informer in self.informers:
                group.create_task(informer.run())
            for informer in self.informers:
                await informer.wait_synced()
            await self.pods.adopt_all()
            for part in (
                self.pods.controller,
                self.owners.controller,
                self.namespaces,
                self.dependencies,
                self.identities.controller,
                self.certificates,
                self.api_services,
            ):
                group.create_task(part.run())
            if self.volumes is not None:
                group.create_task(self.all_caches.lower_nodes.run())
                group.create_task(self.volumes.run())

    # --- for tests ----------------------------------------------------------------------------------

    def bind(self, name: str = "web", *, uid: str = "u-1", namespace: str = "shop", **spec: Any) -> Body:
        """Create an upper pod that is bound to the virtual node."""
        return self.upper.put("pods", pod(name, uid=uid, namespace=namespace, nodeName=self.node, **spec))

    def above(self, name: str = "web") -> Body:
        """Return the upper pod; raise KeyError if it does not exist."""
        return self.upper.the("pods", f"shop/{name}")

    def below(self, name: str = "web") -> Body:
        """Return the lower pod; raise KeyError if it does not exist."""
        return self.lower.the("pods", f"shop/{name}")

    def is_above(self, name: str = "web") -> bool:
        """Report whether the upper pod exists."""
        return self.upper.find("pods", f"shop/{name}") is not None

    def is_below(self, name: str = "web") -> bool:
        """Report whether the lower pod exists."""
        return self.lower.find("pods", f"shop/{name}") is not None


def pod(name: str, *, uid: str, namespace: str = "shop", **spec: Any) -> Body:
    """Return a pod as the API server returns it."""
    body = objects.pod(
        name, namespace=namespace, uid=uid, **spec, metadata={"generation": 1, "resourceVersion": ""}
    )
    return {**body, "status": {"phase": "Pending", "qosClass": "BestEffort"}}


def lower_pod(uid: str, *, node: str = "vn", namespace: str = "shop", name: str = "web") -> Body:
    """Return a lower pod that was created for the upper pod of that uid."""
    body = pod(name, uid=f"l-of-{uid}", nodeName="n1")
    body["metadata"]["labels"] = {
        names.LABEL_UPPER_CLUSTER: CLUSTER,
        names.LABEL_UPPER_UID: uid,
        names.LABEL_NODE: node,
    }
    body["metadata"]["annotations"] = {names.ANNOTATION_UPPER_NAMESPACE: namespace}
    return body


def lower_namespace(upper_name: str = "shop", *, name: str = "") -> Body:
    """Return the lower namespace that was created for an upper one."""
    return namespaces.lower_namespace(
        None, name=name or upper_name, upper_name=upper_name, cluster_id=CLUSTER
    )


def clusters() -> tuple[Cluster, Cluster]:
    """Return an upper cluster with a namespace, and a lower cluster with the namespace that was created for it."""
    upper, lower = Cluster("upper"), Cluster("lower")
    upper.put("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    lower.put("namespaces", lower_namespace())
    return upper, lower


@contextlib.asynccontextmanager
async def mirroring(*scenes: Scene) -> AsyncIterator[Scene]:
    """Run scenes in the block; yield the first of them."""
    tasks = [asyncio.create_task(scene.run()) for scene in scenes]
    try:
        yield scenes[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Scene]:
    """Run a scene between two new clusters. Not a fixture, because fixtures run outside of virtual time."""
    async with mirroring(Scene(*clusters(), **settings)) as scene:
        yield scene
