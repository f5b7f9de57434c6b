"""Unmanaged Services, other processes, other installations: their objects are left alone."""

from __future__ import annotations

import pytest

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.errors import Conflict
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.controllers.services.service_controller_setup import Scene, foreign, mirrored
from virtual_node.controllers.base.problems import namespace_not_adopted

pytestmark = pytest.mark.looptime


async def test_two_processes_do_not_revert_each_other():
    """The other one knows a later state of Service and slice; its writes stay until this cache has that state, too."""
    scene, key = await mirrored(with_slice=True)
    service, piece = scene.services.store.list()[0], scene.controller._slices.store.list()[0]
    for resource, cache in (
        (resources.SERVICES, scene.copies),
        (resources.ENDPOINT_SLICES, scene.mirror.lower),
    ):
        (copy,) = [one.to_dict() for one in cache.store.list()]
        copy["metadata"]["annotations"]["virtual-node.io/applied"] = "later"
        scene.lower.put(resource, copy)
    scene.lower.calls.clear()
    scene.later = True
    await scene.controller.reconcile(key)
    assert [call for call in scene.lower.calls if call[0] == "patch"] == []
    scene.later = False
    await scene.controller.reconcile(key)
    assert [plural for verb, plural, _ in scene.lower.calls if verb == "patch"] == [
        "services",
        "endpointslices",
    ]
    assert (service, piece) == (scene.services.store.list()[0], scene.controller._slices.store.list()[0])


async def test_two_processes_name_their_own_pods_in_a_slice():
    """Neither knows the lower pods of the other, so it keeps the other's entries."""
    scene, key = await mirrored(with_slice=True)
    address = {"addresses": ["10.1.0.1"]}
    above, copy = (
        store.list()[0].to_dict() for store in (scene.controller._slices.store, scene.mirror.lower.store)
    )
    target = {"kind": "Pod", "namespace": "shop", "name": "theirs"}
    above["endpoints"] = [{**address, "targetRef": {**target, "uid": "u-9"}}]
    above["metadata"]["resourceVersion"] = "2"
    copy["endpoints"] = [{**address, "targetRef": {**target, "uid": "l-9"}, "nodeName": "node-9"}]
    scene.controller._slices._store(from_dict(above), initial=False)
    scene.lower.put(resources.ENDPOINT_SLICES, copy)
    scene.lower.calls.clear()
    await scene.controller.reconcile(key)
    assert [call for call in scene.lower.calls if call[0] == "patch"] == []


async def test_an_unmanaged_service_created_during_a_replacement_gets_no_endpoints():
    """The copy is read again before endpoints are written."""
    scene, key = await mirrored()
    scene.add_service(uid="u-2")
    scene.add_slice()
    delete = scene.lower.delete

    async def delete_and_lose(resource, name, *, namespace=None, uid=None):
        await delete(resource, name, namespace=namespace, uid=uid)
        scene.lower.put(resources.SERVICES, foreign("web", "shop"))

    scene.lower.delete = delete_and_lose  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        await scene.controller.reconcile(key)
    await scene.controller.reconcile(key)
    assert len(scene.mirror.lower.store) == 0
    assert scene.recorder.events[-1] == ("Warning", "ServiceConflict")


@pytest.mark.parametrize(
    ("name", "namespace", "kind"), [("kubernetes", "default", "Normal"), ("web", "shop", "Warning")]
)
async def test_an_unmanaged_service_is_left_alone_and_reported_once(name, namespace, kind):
    """No write but the create that failed, one event for any number of reconciles, no endpoints."""
    scene = Scene()
    scene.lower.put(resources.SERVICES, foreign(name, namespace))
    key = scene.add_service(name, namespace)
    scene.add_slice(namespace=namespace, service=name)
    scene.add_pod(namespace)
    for _ in range(3):
        result = await scene.controller.reconcile(key)
        assert result is not None
        assert result.requeue_after
    assert scene.lower.wrote() == [("create", key)]
    assert scene.recorder.events == [(kind, "ServiceConflict")]
    assert scene.lower.objects["services", key]["metadata"]["uid"] == "theirs"
    assert len(scene.mirror.lower.store) == 0


async def test_a_freed_name_is_taken():
    """After the unmanaged Service is deleted, the next reconcile creates the copy."""
    scene = Scene()
    scene.lower.put(resources.SERVICES, foreign("web", "shop"))
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    del scene.lower.objects["services", key]
    assert await scene.controller.reconcile(key) is None
    assert names.LABEL_UPPER_CLUSTER in scene.lower.objects["services", key]["metadata"]["labels"]


async def test_copies_of_a_former_mapping_are_deleted():
    """After a restart with another prefix the Service is only in its new lower namespace."""
    scene, key = await mirrored(with_slice=True)
    scene.context.lower_namespace = lambda name: f"x-{name}"
    await scene.controller.reconcile(key)
    assert {found for _, found in scene.lower.objects} == {
        "x-shop/web", f"x-shop/{next(iter(scene.mirror.lower.store.list())).name}",
    }  # fmt: skip
    assert len(scene.lower.objects) == 2


async def test_copies_of_another_installation_with_another_mapping_stay():
    """Two installations with different mappings would otherwise delete each other's copies."""
    scene, key = await mirrored()
    scene.context.lower_namespace = lambda name: f"x-{name}"
    scene.lower.others_pods = [object()]
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key), ("create", f"x-{key}")]


async def test_copy_for_another_upper_namespace_is_neither_changed_nor_deleted():
    """Two upper namespaces have one lower namespace, and both have a Service of that name."""
    scene, key = await mirrored()
    scene.context.lower_namespace = lambda _name: "shop"
    other = scene.add_service(namespace="market", uid="u-2", ports=[{"port": 81}])
    scene.add_pod("market", "p-2")
    scene.lower.calls.clear()
    result = await scene.controller.reconcile(other)
    assert result is not None
    scene.remove_service(other)
    await scene.controller.reconcile(other)
    assert scene.lower.wrote() == []
    assert scene.recorder.events == [("Warning", "ServiceConflict")]
    assert scene.lower.objects["services", key]["spec"]["ports"][0]["port"] == 80


async def test_forbidden_namespace_gets_no_service_and_no_endpoints():
    """Reported once; a pod that waits for the Services does not wait for this one."""
    scene = Scene()
    scene.namespaces.problem = namespace_not_adopted("shop", "lower1")
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    for _ in range(3):
        result = await scene.controller.reconcile(key)
        assert result is not None
        assert result.requeue_after
    assert scene.lower.objects == {}
    assert scene.recorder.events == [("Warning", "NamespaceNotAdopted")]
    assert not scene.controller._unsettled("shop")


async def test_copy_in_a_namespace_that_is_no_longer_adopted_is_updated():
    """It was made before the upgrade, and pods use it: also when it has to be replaced."""
    scene, key = await mirrored(with_slice=True)
    scene.namespaces.problem = namespace_not_adopted("shop", "lower1")
    scene.add_service(uid="u-2", clusterIP="None")
    assert await scene.controller.reconcile(key) is None
    assert scene.lower.objects["services", key]["spec"]["clusterIP"] == "None"
    assert len(scene.mirror.lower.store) == 1
