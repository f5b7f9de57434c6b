"""The objects of an installation in fake clusters, for tests of its removal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery.matching import parse_selector
from controller_runtime.errors import NotFound
from controller_runtime.objects import from_dict

CLUSTER = "upper-1"


class Api:
    """An API server: objects by kind, and its writes."""

    cluster = "tokyo"
    config = SimpleNamespace(context_name="")
    timeout = 10.0

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = [from_dict(one) for one in objects]
        self.deleted: list[str] = []
        self.forced: list[str] = []
        self.patched: list[tuple[str, Any]] = []
        self.created: list[str] = []
        self.stubborn: set[str] = set()
        """Names of pods that do not end until they are forced."""
        self.daemon_sets: set[str] = set()
        """Names of pods that are recreated as soon as they have ended."""

    async def get(self, resource, name, *, namespace=None):
        for one in self.objects:
            if (one.kind, one.name, one.namespace or None) == (resource.kind, name, namespace):
                return one.to_dict()
        raise NotFound("not found")

    async def list(self, resource, *, namespace=None, label_selector="", field_selector=""):
        found = [
            one for one in self.objects
            if one.kind == resource.kind and namespace in (None, one.namespace)
            and parse_selector(label_selector or "")(one.labels)
            and all(
                (one.spec or {}).get(key.removeprefix("spec."), "") == value
                for key, _, value in (part.partition("=") for part in field_selector.split(",") if part)
            )
        ]  # fmt: skip
        return SimpleNamespace(items=found, resource_version="1")

    async def delete(self, resource, name, *, namespace=None, uid=None, grace_period_seconds=None):
        for one in self.objects:
            if (one.kind, one.name, one.namespace or None) == (resource.kind, name, namespace):
                assert uid in (None, one.uid)
                self.deleted.append(f"{one.kind}/{one.key}")
                if grace_period_seconds == 0:
                    self.forced.append(one.name)
                if one.name not in self.stubborn or grace_period_seconds == 0:
                    self.objects.remove(one)
                    if one.name in self.daemon_sets:
                        again = one.to_dict()
                        again["metadata"]["uid"] += "+"
                        self.objects.append(from_dict(again))
                return
        raise NotFound("not found")

    async def patch(self, _resource, name, patch, *, namespace=None, subresource=None):
        self.patched.append((name, patch))

    async def create(self, _resource, body, **_where):
        self.created.append(f"{body['kind']}/{body.get('metadata', {}).get('name', '')}")
        return {**body, "status": {"token": "t", "expirationTimestamp": "later", "authenticated": False}}

    async def version(self, **_options):
        return {"gitVersion": "v1.34.4"}

    async def read(self, path, **_more):
        lists: dict[str, Any] = {"/api/v1": {"resources": []}, "/apis": {"groups": []}}
        if path not in lists:
            raise NotFound("not found", code=404)
        return lists[path]


def thing(
    kind: str, name: str, *, namespace: str = "", labels: dict[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """An object of the API."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"u-{name}",
        "resourceVersion": "1",
        "labels": labels or {},
    }
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {**metadata, **fields.pop("metadata", {})},
        **fields,
    }


def virtual(name: str) -> dict[str, Any]:
    """A virtual node."""
    return thing("Node", name, labels={names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL}, spec={})


def ours(kind: str, name: str, *, node: str = "vn", namespace: str = "shop", **fields: Any) -> dict[str, Any]:
    """Return an owned lower object."""
    labels = {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: f"up-{name}", names.LABEL_NODE: node}
    return thing(kind, name, namespace=namespace, labels=labels, **fields)
