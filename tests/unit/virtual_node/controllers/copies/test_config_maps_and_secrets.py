"""The copies of ConfigMaps across a restart: a running pod keeps what it references."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceMap
from clusterset.model.overrides import Override, OverrideSet
from clusterset.model.policy.rules import PolicySet
from controller_runtime import resources
from controller_runtime.apimachinery.decoding import convert
from controller_runtime.cache.informer import Informer
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import Invalid
from controller_runtime.objects import Object, from_dict
from controller_runtime.workqueue.controller import Controller
from tests import objects
from tests.background import working
from virtual_node.config import types as configuration
from virtual_node.controllers.base.caches import INDEX_UPPER
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions, View
from virtual_node.translate.kinds import CONFIG_MAPS, SECRETS

pytestmark = pytest.mark.looptime

CLUSTER = "upper-1"


class Lower:
    """A lower apiserver that records deletions and patches."""

    cluster = "lower"
    caches = CacheBudget(0, cluster="lower")

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.patched: list[str] = []
        self.uids: list[str] = []
        self.refusal: Exception | None = None

    async def exists(self, _resource, **_selection):
        return False

    async def delete(self, _resource, name, *, namespace=None, uid=None):
        self.deleted.append(f"{namespace}/{name}")

    async def patch(self, _resource, name, patch, *, namespace=None):
        self.uids.append(patch["metadata"]["uid"])
        if self.refusal is not None:
            raise self.refusal
        self.patched.append(f"{namespace}/{name}")


class Watches:
    """The upper objects, without an upper cluster."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}

    async def get(self, key):
        return self.objects.get(f"{key.namespace}/{key.name}")

    def stop(self, _key) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()


class Scene:
    """A dependency controller that finds one lower copy when it starts."""

    def __init__(self) -> None:
        self.lower = Lower()
        client: Any = self.lower
        owner = Owner(CLUSTER, "vn")
        options = PodOptions(owner=owner, namespace_map=NamespaceMap())
        context: Any = SimpleNamespace(
            name="lower1", cluster_id=CLUSTER, upper=SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper")), lower=client,
            nodes={"vn": None}, options={"vn": options}, rules=SimpleNamespace(overrides=options.overrides, policy=PolicySet()), log=structlog.get_logger(),
            cannot_grow=lambda _upper, _copy: None,
            settings=configuration.Config(enable_serviceaccount=False), lower_namespace=options.namespace_map,
            controller=lambda name, reconcile, **_: Controller(name, reconcile),
            view=lambda: View(cluster_id=CLUSTER, nodes=("vn",)),
        )  # fmt: skip
        self.copies = Informer(client, resources.CONFIG_MAPS, indexers={INDEX_UPPER: CONFIG_MAPS.upper_key})
        namespaces: Any = SimpleNamespace()
        caches: Any = SimpleNamespace(
            config_maps=self.copies,
            secrets=Informer(client, resources.SECRETS, indexers={INDEX_UPPER: SECRETS.upper_key}),
            claims={},
            pods=SimpleNamespace(are_in=lambda _namespace: False),
        )
        self.controller = DependencyController(
            context,
            caches,
            namespaces=namespaces,
            wake=lambda _uid: None,
        )
        self.watches = Watches()
        self.controller._watches = self.watches  # type: ignore[assignment]
        self.watches.objects["shop/settings"] = config_map("settings", {"a": "1"})
        copy = config_map("settings", {"a": "1"}).to_dict()
        copy["metadata"]["labels"] = {
            names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: "u-settings", names.LABEL_NODE: "vn",
        }  # fmt: skip
        self.copies._store(from_dict(copy), initial=True)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Scene]:
    """Run a controller. Not a fixture, because fixtures run outside of virtual time."""
    made = Scene()
    async with working(made.controller.run()):
        yield made


def config_map(name: str, data: dict[str, str]) -> Object:
    """Return an upper ConfigMap."""
    return from_dict(objects.config_map(name, data, uid=f"u-{name}"))


def user() -> Object:
    """Return an upper pod that references the ConfigMap."""
    volume = {"name": "s", "configMap": {"name": "settings"}}
    return from_dict(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "uid": "p-1", "resourceVersion": "1"},
            "spec": {"nodeName": "vn", "containers": [], "volumes": [volume]},
        }
    )


async def test_an_unused_copy_is_deleted_after_a_restart():
    async with running() as scene:
        await asyncio.sleep(120)
        assert scene.lower.deleted == ["shop/settings"]


async def test_a_running_pod_keeps_its_copy_across_a_restart():
    """A container that restarts later must still find its ConfigMap."""
    async with running() as scene:
        scene.controller.claim(user().to_dict(), user().to_dict())
        await asyncio.sleep(600)
        assert scene.lower.deleted == []


async def test_a_used_copy_is_updated_after_a_restart():
    """The copy gets upper changes made during the downtime."""
    async with running() as scene:
        scene.watches.objects["shop/settings"] = config_map("settings", {"a": "2"})
        scene.controller.claim(user().to_dict(), user().to_dict())
        await asyncio.sleep(1)
        assert scene.lower.patched == ["shop/settings"]


async def test_objects_of_overrides_are_needed_like_those_of_the_pod():
    """The stricter reference counts: a mandatory object of an override must exist, although the pod can start without."""
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "proxy", "key": "k"}}}
    override = {"name": "o", "patch": {"spec": {"containers": [{"name": "*", "env": [variable]}]}}}
    pod = user().to_dict()
    pod["spec"]["containers"] = [
        {"name": "c", "envFrom": [{"configMapRef": {"name": "proxy", "optional": True}}]}
    ]
    async with running() as scene:
        controller = scene.controller
        before = controller._keys("shop", pod)
        controller.context.rules.overrides = OverrideSet([convert(override, Override)])
        after = controller._keys("shop", pod)
        for keys, is_optional in ((before, True), (after, False)):
            needs = {key.name: need is not None and need.optional for key, need in keys.items()}
            assert needs == {"settings": False, "proxy": is_optional}


async def test_a_used_copy_is_deleted_after_its_pod():
    async with running() as scene:
        scene.controller.claim(user().to_dict(), user().to_dict())
        await asyncio.sleep(1)
        scene.controller.forget_pod("p-1")
        await asyncio.sleep(120)
        assert scene.lower.deleted == ["shop/settings"]


async def test_a_copy_is_patched_with_a_uid_precondition():
    async with running() as scene:
        scene.watches.objects["shop/settings"] = config_map("settings", {"a": "2"})
        scene.controller.claim(user().to_dict(), user().to_dict())
        await asyncio.sleep(1)
        assert scene.lower.uids == ["u-settings"]


async def test_an_unmanaged_object_in_place_of_a_copy_is_not_replaced():
    """A patch that is refused for its uid is no reason to delete and create: ownership is read first."""
    async with running() as scene:
        causes = {"details": {"causes": [{"field": "metadata.uid"}]}}
        scene.lower.refusal = Invalid("metadata.uid: field is immutable", status=causes)
        scene.watches.objects["shop/settings"] = config_map("settings", {"a": "2"})
        scene.controller.claim(user().to_dict(), user().to_dict())
        await asyncio.sleep(5)
        assert scene.lower.deleted == []
        assert len(scene.lower.uids) > 1  # it is retried
