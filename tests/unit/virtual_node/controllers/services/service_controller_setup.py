"""The service controller on caches that a test fills, with a lower cluster that answers from a dict."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Literal

import structlog

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import AlreadyExists, Invalid, NotFound
from controller_runtime.objects import Object, from_dict
from virtual_node.config import types as configuration
from virtual_node.controllers.base.context import INDEX_UID, INDEX_UPPER_UID, PodCaches
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.services.controller import ServiceController
from virtual_node.controllers.services.endpoint_slices import INDEX_SERVICE, EndpointSlices
from virtual_node.controllers.services.environment import INDEX_NAMESPACE
from virtual_node.controllers.services.mirror import upper_service

CLUSTER = "upper-1"


Writes = list[tuple[str, str]]


class Lower:
    """A lower apiserver: objects by (plural, namespace/name), and what was asked of it."""

    cluster = "lower"

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.families = {"IPv4"}
        self.range = "10.97."
        """What addresses begin with that can be asked for."""
        self.without: set[str] = set()
        """Resources that this cluster does not know."""
        self.others_pods: list[Any] = []
        self.informers: dict[str, Informer] = {}

    async def list(self, resource, **_selection):
        self.calls.append(("list", resource.plural, ""))
        if resource.plural in self.without:
            raise NotFound("the server could not find the requested resource")
        return SimpleNamespace(items=self.others_pods if resource is resources.PODS else [])

    async def get(self, resource, name, *, namespace=None):
        self.calls.append(("get", resource.plural, f"{namespace}/{name}"))
        try:
            return self.objects[resource.plural, f"{namespace}/{name}"]
        except KeyError:
            raise NotFound("not found") from None

    async def create(self, resource, body, *, namespace=None):
        key = f"{namespace}/{body['metadata']['name']}"
        self.calls.append(("create", resource.plural, key))
        if (resource.plural, key) in self.objects:
            raise AlreadyExists("exists")
        asked = set(body.get("spec", {}).get("ipFamilies") or ())
        if not asked <= self.families:
            raise Invalid("spec.ipFamilies[0]: not configured on this cluster")
        body = json.loads(json.dumps(body))
        self._check_addresses(body.get("spec", {}).get("clusterIPs") or ())
        body["metadata"] |= {"uid": f"l-{len(self.calls)}", "resourceVersion": "1"}
        self.put(resource, body)
        return body

    def _check_addresses(self, asked) -> None:
        taken = {body.get("spec", {}).get("clusterIP") for body in self.objects.values()}
        for address in asked:
            invalid = (
                f'Service "web" is invalid: spec.clusterIPs: Invalid value: failed to allocate IP {address}: '
            )
            if not address.startswith(self.range):
                raise Invalid(f"{invalid}the provided network does not match the current range")
            if address in taken:
                raise Invalid(f"{invalid}provided IP is already allocated")

    async def patch(self, resource, name, patch, *, namespace=None):
        self.calls.append(("patch", resource.plural, f"{namespace}/{name}"))
        body = self.objects[resource.plural, f"{namespace}/{name}"]
        for key, value in (patch.get("metadata", {}).get("annotations") or {}).items():
            body["metadata"]["annotations"] |= {key: value}
            if value is None:
                del body["metadata"]["annotations"][key]
        self.put(resource, body)
        return body

    async def delete(self, resource, name, *, namespace=None, uid=None):
        key = f"{namespace}/{name}"
        self.calls.append(("delete", resource.plural, key))
        assert self.objects[resource.plural, key]["metadata"]["uid"] == uid
        del self.objects[resource.plural, key]
        self.informers[resource.plural].store.remove(key)

    def put(self, resource, body) -> None:
        """Have an object there, and in the cache when it carries our label."""
        key = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        self.objects[resource.plural, key] = body
        if body["metadata"].get("labels", {}).get(names.LABEL_UPPER_CLUSTER) == CLUSTER:
            self.informers[resource.plural].store.put(key, from_dict(body))

    def wrote(self) -> Writes:
        """Verbs and keys of the writes to Services."""
        return [
            (verb, key)
            for verb, plural, key in self.calls
            if plural == "services" and verb not in {"get", "list"}
        ]


class Recorder:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.messages: list[str] = []

    def event(self, involved, kind, reason, message) -> None:
        self.events.append((kind, reason))
        self.messages.append(message)


class Namespaces:
    """Every namespace is there and allowed, unless there is a problem with all of them."""

    def __init__(self) -> None:
        self.problem: Problem | None = None

    async def ensure(self, namespace, *, upper_name) -> Problem | None:
        return self.problem

    def forget(self, namespace) -> None:
        pass

    def allowed(self, namespace) -> bool:
        return bool(namespace != "forbidden")


class Scene:
    """A controller, what it reads and what it wrote."""

    def __init__(self, *, cluster_ip: Literal["own", "same"] = "own", **settings: Any) -> None:
        self.lower = Lower()
        self.recorder = Recorder()
        self.unseen: list[Object] = []
        """What the upper cluster has, and our caches do not show yet."""
        self.later = False
        """The upper cluster has everything in a later state than our caches."""
        upper = SimpleNamespace(cluster="upper", list=self._list_above)
        self.context: Any = SimpleNamespace(
            name="lower1", cluster_id=CLUSTER, upper=upper, lower=self.lower, nodes={"vn": None},
            settings=configuration.Config(**settings), recorder=self.recorder, log=structlog.get_logger(),
            lower_namespace=lambda name: name,
            config=configuration.LowerClusterConfig(
                name="lower1", services=configuration.ClusterServicesConfig(cluster_ip=cluster_ip)
            ),
        )  # fmt: skip
        client: Any = upper
        self.pods = Informer(client, resources.PODS, indexers={INDEX_UID: lambda pod: (pod.uid,)})
        lower_client: Any = self.lower
        lower_pods = Informer(lower_client, resources.PODS, indexers={INDEX_UPPER_UID: lambda _pod: ()})
        caches = PodCaches(upper={"vn": self.pods}, lower=lower_pods)
        self.services = Informer(
            client, resources.SERVICES, indexers={INDEX_NAMESPACE: lambda service: (service.namespace,)}
        )
        self.copies = Informer(lower_client, resources.SERVICES, indexers={INDEX_SERVICE: upper_service})
        self.namespaces = Namespaces()
        namespaces: Any = self.namespaces
        context: Any = self.context
        self.controller = ServiceController(
            context, caches, namespaces=namespaces, upper=self.services, lower=self.copies
        )
        self.mirror = EndpointSlices(context, caches, upper=self.controller._slices)
        self.controller._endpoints = self.mirror
        self.lower.informers = {"services": self.copies, "endpointslices": self.mirror.lower}
        self.caches = caches

    async def _list_above(self, resource, *, namespace, field_selector="", label_selector="", **_rest):
        cached = self.services if resource is resources.SERVICES else self.controller._slices
        return SimpleNamespace(
            items=[
                thing(one.kind, one.name, one.namespace, "later") if self.later else one
                for one in [*cached.store.list(), *self.unseen]
                if one.namespace == namespace
                and field_selector in {"", f"metadata.name={one.name}"}
                and label_selector in {"", *(f"{key}={value}" for key, value in one.labels.items())}
            ]
        )

    def add_pod(self, namespace="shop", uid="p-1") -> None:
        """A pod comes to our virtual node."""
        self.pods._store(thing("Pod", "pod", namespace, uid), initial=False)

    def remove_pod(self, namespace="shop") -> None:
        """And goes."""
        self.pods._remove(f"{namespace}/pod", None)

    def add_service(self, name="web", namespace="shop", uid="u-1", **spec) -> str:
        """An upper Service; its key."""
        spec = {"type": "ClusterIP", "clusterIP": "10.96.0.9", "ports": [{"port": 80}], **spec}
        self.services._store(thing("Service", name, namespace, uid, spec=spec), initial=False)
        return f"{namespace}/{name}"

    def remove_service(self, key) -> None:
        """It goes."""
        self.services._remove(key, None)

    def add_slice(self, name="web-1", namespace="shop", service="web", uid="s-1") -> None:
        """An upper EndpointSlice with one address."""
        body = thing("EndpointSlice", name, namespace, uid).to_dict()
        body["metadata"]["labels"] = {"kubernetes.io/service-name": service}
        body |= {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"]}], "ports": [{"port": 80}]}
        self.controller._slices._store(from_dict(body), initial=False)


def thing(kind, name, namespace, uid, **fields) -> Object:
    """A cached object."""
    return from_dict(
        {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1"},
            **fields,
        }
    )


def foreign(name, namespace) -> dict[str, Any]:
    """A lower Service of somebody else's."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": "theirs"},
        "spec": {"clusterIP": "10.97.0.1"},
    }


async def mirrored(*, with_slice: bool = False) -> tuple[Scene, str]:
    """A Service that a pod of its namespace has brought below, with an EndpointSlice if asked for; and its key."""
    scene = Scene()
    key = scene.add_service()
    if with_slice:
        scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    return scene, key
