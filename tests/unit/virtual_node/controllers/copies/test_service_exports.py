"""A ServiceExport is copied beside the copy of its Service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.policy.config import MetadataRules, Policy
from clusterset.model.policy.rules import PolicySet
from controller_runtime.errors import NotFound
from tests.fakes.apiserver.client import refusing
from tests.unit.virtual_node.controllers.copies.follow_setup import Scene
from virtual_node.controllers.copies.surroundings import GRACE

pytestmark = pytest.mark.looptime


def _add_service(scene: Scene, **spec: Any) -> None:
    """Create the lower copy of the Service, and its upper Service."""
    scene.upper.put(
        "services", {"metadata": {"name": "web", "namespace": "shop", "uid": "s-1"}, "spec": spec}
    )
    metadata = {
        "name": "web", "namespace": "shop", "uid": "copy-web",
        "labels": {names.LABEL_UPPER_CLUSTER: "upper-1", names.LABEL_UPPER_UID: "s-1"},
        "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "shop"},
    }  # fmt: skip
    scene.lower.put("services", {"metadata": metadata, "spec": spec})


def _scene(**service: Any) -> Scene:
    scene = Scene("serviceExports")
    scene.upper.feed(scene.all_caches.upper_services)
    scene.add_pod()
    _add_service(scene, **service)
    return scene


async def test_an_export_has_the_name_of_the_copied_service():
    scene = _scene()
    key = scene.add(None)
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert copy["apiVersion"] == "multicluster.x-k8s.io/v1alpha1"
    assert (copy["metadata"]["name"], copy["metadata"]["namespace"]) == ("web", "shop")
    assert copy["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"
    assert "spec" not in copy
    await scene.controller.reconcile(key)
    assert scene.writes() == ["create"]


async def test_an_export_without_a_copied_service_has_no_copy():
    """It would export a Service of the lower cluster that has the same name by chance."""
    scene = Scene("serviceExports")
    scene.add_pod()
    scene.lower.put(
        "services", {"metadata": {"name": "web", "namespace": "shop", "uid": "theirs"}, "spec": {}}
    )
    await scene.controller.reconcile(scene.add(None))
    assert scene.copy() is None
    assert scene.reported == []


async def test_a_service_without_endpoints_is_not_exported():
    """The API does not allow to export a Service of type ExternalName."""
    scene = _scene(type="ExternalName", externalName="a.b")
    await scene.controller.reconcile(scene.add(None))
    assert scene.copy() is None


async def test_an_export_is_deleted_with_the_copy_of_its_service():
    """Also if the upper Service exists, because the last pod of the namespace has ended."""
    scene = _scene()
    key = scene.add(None)
    await scene.controller.reconcile(key)
    scene.upper.remove("pods", "shop/pod")
    assert await scene.controller.reconcile(key) is None
    await asyncio.sleep(GRACE + 1)
    await scene.controller.reconcile(key)
    assert scene.copy() is not None
    queue = scene.controller.controller.queue
    for _ in range(len(queue)):
        queue.done(await queue.get())
    scene.lower.remove("services", "shop/web")
    assert await queue.get() == key
    await scene.controller.reconcile(key)
    assert scene.copy() is None


async def test_an_export_stays_while_the_copy_of_its_service_is_replaced():
    """Other clusters would lose the Service for a moment."""
    scene = _scene()
    key = scene.add(None)
    await scene.controller.reconcile(key)
    scene.lower.remove("services", "shop/web")
    assert await scene.controller.reconcile(key) is not None
    assert scene.copy() is not None
    scene.upper.remove("services", "shop/web")
    await scene.controller.reconcile(key)
    assert scene.copy() is None


async def test_exported_labels_follow_the_policy_and_unknown_fields_are_left_out():
    scene = _scene()
    scene.context.rules.policy = PolicySet(Policy(metadata=MetadataRules(leave_out=["example.com/*"])))
    labels = {"team": "a", "example.com/secret": "x", "virtual-node.io/node": "forged"}
    spec = {"exportedLabels": labels, "exportedAnnotations": {"note": "b"}, "newField": 1}
    key = scene.add(spec)
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert copy["spec"] == {"exportedLabels": {"team": "a"}, "exportedAnnotations": {"note": "b"}}
    ((reason, message),) = scene.reported
    assert reason == "PartlyMirrored"
    assert "newField is left out" in message


async def test_the_status_of_the_upper_export_is_not_written():
    """Its conditions belong to the implementation in the upper cluster."""
    scene = _scene()
    key = scene.add(None)
    await scene.controller.reconcile(key)
    conditions = [{"type": "Valid", "status": "True"}]
    scene.lower.change("serviceexports", key, status={"conditions": conditions})
    await scene.controller.reconcile(key)
    assert scene.writes() == ["create"]
    assert "status" not in scene.upper.the("serviceexports", key)


async def test_waits_for_the_api():
    """The CustomResourceDefinition is installed later."""
    scene = _scene()
    scene.lower.fault = refusing(NotFound("no such resource"), "serviceexports")
    waiting = asyncio.ensure_future(scene.controller._both_have_it())
    await asyncio.sleep(1)
    assert not waiting.done()
    scene.lower.fault = lambda _verb, _plural, _key: None
    await waiting
