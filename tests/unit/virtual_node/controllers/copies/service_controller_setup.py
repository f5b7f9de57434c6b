"""The service controller between two clusters in memory. Its caches show each change at once unless it is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal
from unittest.mock import Mock

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceMap
from controller_runtime.workqueue.controller import Result
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers import pod_controller_setup
from tests.unit.virtual_node.controllers.cluster import Cluster
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.copies.facade import Follow
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate.kinds import ENDPOINT_SLICES, SERVICES

BOTH = {"services", "endpointslices"}


class _ServiceAndSlices:
    """The controllers of Services and EndpointSlices."""

    def __init__(self, follow: Follow) -> None:
        self.services: Any = follow._controllers.get(SERVICES)
        self.slices: Any = follow._controllers.get(ENDPOINT_SLICES)
        self.follow = follow

    async def reconcile(self, key: str) -> Result | None:
        """Reconcile a Service and then its EndpointSlices, as their events do; return the result of the Service."""
        result = await self.services.reconcile(key)
        assert isinstance(result, Result | None)
        slices = self.slices
        wanted = {piece.key for piece in slices._upper.store.list()}
        wanted |= {
            source for copy in slices.copies.lower.store.list() for source in slices.kind.upper_key(copy)
        }
        for piece in sorted(wanted):
            await slices.reconcile(piece)
        return result


class Scene(pod_controller_setup.Scene):
    """A service controller, its two clusters and its events."""

    def __init__(self, *, cluster_ip: Literal["own", "same"] = "own", **settings: Any) -> None:
        super().__init__(Cluster("upper"), Cluster("lower"), **settings)
        self.lower.server.families = {"IPv4"}
        for name, upper_name in {"shop": "shop", "x-shop": "shop", "default": "default"}.items():
            self.lower.put("namespaces", pod_controller_setup.lower_namespace(upper_name, name=name))
        for name in ("kube-system", "elsewhere"):
            self.lower.put("namespaces", {"metadata": {"name": name}})
        self.reported: list[tuple[str, str]] = []
        """Type and reason of the events."""
        self.messages: list[str] = []
        self.context.recorder = Mock(event=self._event)
        self.context.config.services.cluster_ip = cluster_ip
        self.problem: Problem | None = None
        """What is wrong with all lower namespaces."""
        namespaces: Any = Namespaces(self.context, self.all_caches)
        namespaces.ensure = self._ensure_namespace
        namespaces.allowed = lambda name: name != "forbidden"
        self.follow = Follow(
            self.context, self.all_caches, namespaces=namespaces, dependencies=self.dependencies, wake=Mock()
        )
        self.controller = _ServiceAndSlices(self.follow)
        self.upper_services = self.all_caches.upper_services
        self.lower_services = self.all_caches.lower_services
        if self.controller.slices is None:
            return
        self.slices = self.controller.slices._upper
        self.lower_slices = self.controller.slices.copies.lower
        self.upper.feed(self.upper_services, self.slices, self.caches.upper["vn"])
        self.lower.feed(self.all_caches.lower_namespaces, self.lower_services, self.lower_slices)

    def _event(self, _involved: Any, kind: str, reason: str, message: str) -> None:
        self.reported.append((kind, reason))
        self.messages.append(message)

    async def _ensure_namespace(self, _upper_name: str) -> Problem | None:
        return self.problem

    def add_pod(self, namespace: str = "shop", uid: str = "p-1") -> None:
        """Bind an upper pod to the virtual node."""
        self.bind("pod", uid=uid, namespace=namespace)

    def add_service(self, name: str = "web", namespace: str = "shop", uid: str = "u-1", **spec: Any) -> str:
        """Create an upper Service; return its key."""
        spec = {"type": "ClusterIP", "clusterIP": "10.96.0.9", "ports": [{"port": 80}], **spec}
        self.upper.put(
            "services", {"metadata": {"name": name, "namespace": namespace, "uid": uid}, "spec": spec}
        )
        return f"{namespace}/{name}"

    def add_slice(self, namespace: str = "shop", service: str = "web") -> None:
        """Create an upper EndpointSlice with one address."""
        labels = {"kubernetes.io/service-name": service}
        metadata = {"name": "web-1", "namespace": namespace, "uid": "s-1", "labels": labels}
        addresses = {"endpoints": [{"addresses": ["10.1.0.1"]}], "ports": [{"port": 80}]}
        self.upper.put("endpointslices", {"metadata": metadata, "addressType": "IPv4", **addresses})

    def map_namespaces(self, mapping: NamespaceMap) -> None:
        """Change the lower namespaces, as by a restart with another configuration."""
        self.context.rules.namespace_map = mapping
        self.context.options = {
            node: replace(options, namespace_map=mapping) for node, options in self.context.options.items()
        }

    def fall_behind(self) -> None:
        """Change all upper Services and EndpointSlices, unseen by the caches until ``upper.release``."""
        self.upper.held |= BOTH
        for plural, key in list(self.upper.objects):
            if plural in BOTH:
                self.upper.change(plural, key, metadata={"labels": {"changed": "later"}})

    def add_foreign(self, name: str = "web", namespace: str = "shop") -> None:
        """Create an unmanaged lower Service, or replace the one of that name by it."""
        metadata = {"name": name, "namespace": namespace, "uid": "theirs"}
        self.lower.put("services", {"metadata": metadata, "spec": {"clusterIP": "10.97.0.1"}})

    def add_others_pod(self) -> None:
        """Create a lower pod that another process mirrors."""
        labels = {names.LABEL_UPPER_CLUSTER: pod_controller_setup.CLUSTER, names.LABEL_NODE: "vn-other"}
        self.lower.put("pods", {"metadata": {"name": "other", "namespace": "shop", "labels": labels}})

    def copy(self, plural: str = "services") -> Body:
        """Return the only managed lower object of a resource."""
        informer = self.lower_services if plural == "services" else self.lower_slices
        (found,) = informer.store.list()
        return found.to_dict()

    def made(self) -> set[str]:
        """Return the keys of all lower Services and their endpoints."""
        return {key for plural, key in self.lower.objects if plural not in {"namespaces", "pods"}}

    def wrote(self) -> list[tuple[str, str]]:
        """Return verbs and keys of the writes to lower Services."""
        return [
            (verb, key)
            for verb, plural, key in self.lower.calls
            if plural == "services" and verb in {"create", "patch", "delete"}
        ]


async def mirrored(*, with_slice: bool = False) -> tuple[Scene, str]:
    """Mirror a Service for a pod of its namespace, with an EndpointSlice if requested; return its key, too."""
    scene = Scene()
    key = scene.add_service()
    if with_slice:
        scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    return scene, key
