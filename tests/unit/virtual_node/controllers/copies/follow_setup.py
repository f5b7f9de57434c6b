"""The controllers of followed objects between two clusters in memory, whose caches show each change at once."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from clusterset.model.namespace_map import NamespaceConfig
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers import pod_controller_setup
from tests.unit.virtual_node.controllers.cluster import Cluster
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.copies.controller import CopyController
from virtual_node.controllers.copies.surroundings import Surroundings
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate.kinds import FOLLOWED


class Scene(pod_controller_setup.Scene):
    """The controller of one kind, its two clusters and its events."""

    def __init__(self, setting: str = "networkPolicies", *, kind: str = "") -> None:
        super().__init__(Cluster("upper"), Cluster("lower"), namespaces=NamespaceConfig(adopt=True))
        for namespace in ("shop", "other"):
            labels = {"kubernetes.io/metadata.name": namespace, "team": namespace}
            self.upper.put("namespaces", {"metadata": {"name": namespace, "labels": labels}})
            self.lower.put("namespaces", {"metadata": {"name": namespace}})
        self.upper.put("namespaces", {"metadata": {"name": "kube-system"}})
        self.woken: list[str] = []
        self.reported: list[tuple[str, str]] = []
        self.context.recorder = Mock(
            event=lambda _involved, _kind, reason, message: self.reported.append((reason, message))
        )
        caches = self.all_caches
        namespaces: Any = Namespaces(self.context, caches)
        namespaces.ensure = self._ensure
        namespaces.allows_namespace = lambda name: name != "forbidden"
        self.surroundings = Surroundings(self.context, caches, namespaces=namespaces)
        # Of Gateways and HTTPRoutes the former.
        enabled = [one for one in reversed(FOLLOWED) if one.setting == setting]
        self.kind = next(one for one in enabled if one.kind == (kind or enabled[0].kind))
        self.controller = CopyController(
            self.context,
            self.kind,
            namespaces=namespaces,
            surroundings=self.surroundings,
            dependencies=self.dependencies,
            wake=self.woken.append,
        )
        self.copies = self.controller.copies.lower
        self.upper.feed(
            caches.upper_namespaces, caches.upper_services, self.controller._upper, self.caches.upper["vn"]
        )
        self.lower.feed(
            self.copies, self.caches.lower, caches.lower_services, caches.secrets, caches.config_maps
        )

    async def _ensure(self, _upper_name: str) -> Problem | None:
        return None

    def add(
        self, spec: Any, *, name: str = "web", namespace: str = "shop", uid: str = "u-1", status: Any = None
    ) -> str:
        """Create or replace an upper object; return its key."""
        resource = self.kind.resource
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "generation": 1},
            "spec": spec,
        }
        self.upper.put(resource.plural, {**body, **({"status": status} if status else {})})
        return f"{namespace}/{name}"

    def add_pod(self, name: str = "pod", **labels: str) -> None:
        """Bind an upper pod to the virtual node."""
        body = pod_controller_setup.pod(name, uid=f"uid-{name}", nodeName="vn")
        body["metadata"]["labels"] = labels
        self.upper.put("pods", body)

    def add_foreign(self, name: str) -> Body:
        """Create an unmanaged lower object."""
        resource = self.kind.resource
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": "shop", "uid": "theirs"},
            "spec": {"theirs": True},
        }
        return self.lower.put(resource.plural, body)

    def copy(self) -> Body | None:
        """Return the only managed lower object; None: there is none."""
        found = [one.to_dict() for one in self.copies.store.list()]
        assert len(found) <= 1
        return found[0] if found else None

    def writes(self) -> list[str]:
        """Return the verbs of all writes to the lower cluster."""
        return [
            verb
            for verb, plural, _ in self.lower.calls
            if plural == self.kind.resource.plural and verb in {"create", "patch", "delete"}
        ]
