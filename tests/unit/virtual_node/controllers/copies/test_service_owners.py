"""Unmanaged Services, other processes, other installations: their objects are left alone."""

from __future__ import annotations

import pytest

from clusterset.admission import NamespaceRefusal
from clusterset.model import names
from clusterset.model.namespace_map import NamespaceMap
from controller_runtime.errors import Conflict
from tests.unit.virtual_node.controllers.copies.service_controller_setup import BOTH, Scene, mirrored
from virtual_node.controllers.base.problems import namespace_refused

pytestmark = pytest.mark.looptime


async def test_two_processes_do_not_revert_each_other():
    """The other one knows a later state of Service and slice; its writes stay until this cache has that state, too."""
    scene, key = await mirrored(with_slice=True)
    for plural in ("services", "endpointslices"):
        copy = scene.copy(plural)
        copy["metadata"]["annotations"]["virtual-node.io/applied"] = "later"
        scene.lower.put(plural, copy)
    scene.lower.calls.clear()
    scene.fall_behind()
    await scene.controller.reconcile(key)
    assert [call for call in scene.lower.calls if call[0] == "patch"] == []
    for plural in BOTH:
        scene.upper.release(plural)
    await scene.controller.reconcile(key)
    assert [plural for verb, plural, _ in scene.lower.calls if verb == "patch"] == [
        "services",
        "endpointslices",
    ]


async def test_an_unmanaged_service_created_during_a_replacement_gets_no_endpoints():
    """The copy is read again before endpoints are written."""
    scene, key = await mirrored()
    scene.add_service(uid="u-2")
    scene.add_slice()

    def take_name(commit):
        if (commit.verb, commit.plural) == ("delete", "services"):
            scene.add_foreign()

    scene.lower.server.observers.append(take_name)
    with pytest.raises(Conflict):
        await scene.controller.reconcile(key)
    await scene.controller.reconcile(key)
    assert len(scene.lower_slices.store) == 0
    assert scene.reported[-1] == ("Warning", "ServiceConflict")


@pytest.mark.parametrize(
    ("name", "namespace", "reported"),
    [("kube-dns", "kube-system", []), ("web", "shop", [("Warning", "ServiceConflict")])],
)
async def test_an_unmanaged_service_is_left_alone_and_reported_once(name, namespace, reported):
    """No write but the create that failed, one event, none if it is always so, no endpoints."""
    scene = Scene()
    scene.add_foreign(name, namespace)
    key = scene.add_service(name, namespace)
    scene.add_slice(namespace=namespace, service=name)
    scene.add_pod(namespace)
    for _ in range(3):
        result = await scene.controller.reconcile(key)
        assert result is not None
        assert result.requeue_after
    assert scene.wrote() == [("create", key)]
    assert scene.reported == reported
    assert scene.lower.objects["services", key]["metadata"]["uid"] == "theirs"
    assert len(scene.lower_slices.store) == 0


async def test_a_freed_name_is_taken():
    """After the unmanaged Service is deleted, the next reconcile creates the copy."""
    scene = Scene()
    scene.add_foreign()
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.lower.remove("services", key)
    assert await scene.controller.reconcile(key) is None
    assert names.LABEL_UPPER_CLUSTER in scene.lower.objects["services", key]["metadata"]["labels"]


async def test_copies_of_a_former_mapping_are_deleted():
    """After a restart with another prefix the Service is only in its new lower namespace."""
    scene, key = await mirrored(with_slice=True)
    scene.map_namespaces(NamespaceMap("x-"))
    await scene.controller.reconcile(key)
    assert scene.made() == {"x-shop/web", f"x-shop/{scene.copy('endpointslices')['metadata']['name']}"}


async def test_copies_of_another_installation_with_another_mapping_stay():
    """Two installations with different mappings would otherwise delete each other's copies."""
    scene, key = await mirrored()
    scene.map_namespaces(NamespaceMap("x-"))
    scene.add_others_pod()
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key), ("create", f"x-{key}")]


async def test_copy_for_another_upper_namespace_is_neither_changed_nor_deleted():
    """Two upper namespaces have one lower namespace, and both have a Service of that name."""
    scene, key = await mirrored()
    scene.map_namespaces(NamespaceMap(explicit={"market": "shop"}))
    other = scene.add_service(namespace="market", uid="u-2", ports=[{"port": 81}])
    scene.add_pod("market", "p-2")
    scene.lower.calls.clear()
    result = await scene.controller.reconcile(other)
    assert result is not None
    scene.upper.remove("services", other)
    await scene.controller.reconcile(other)
    assert scene.wrote() == []
    assert scene.reported == [("Warning", "ServiceConflict")]
    assert scene.lower.objects["services", key]["spec"]["ports"][0]["port"] == 80


async def test_forbidden_namespace_gets_no_service_and_no_endpoints():
    """Reported once; a pod that waits for the Services does not wait for this one."""
    scene = Scene()
    scene.problem = namespace_refused(NamespaceRefusal("not adopted", is_taken=False))
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    for _ in range(3):
        result = await scene.controller.reconcile(key)
        assert result is not None
        assert result.requeue_after
    assert scene.made() == set()
    assert scene.reported == [("Warning", "NamespaceNotAdopted")]
    assert not scene.follow._unsettled("shop")


async def test_copy_in_a_namespace_that_is_no_longer_adopted_is_updated():
    """It was made before the upgrade, and pods use it: also when it has to be replaced."""
    scene, key = await mirrored(with_slice=True)
    scene.problem = namespace_refused(NamespaceRefusal("not adopted", is_taken=False))
    scene.add_service(uid="u-2", clusterIP="None")
    assert await scene.controller.reconcile(key) is None
    assert scene.lower.objects["services", key]["spec"]["clusterIP"] == "None"
    assert len(scene.lower_slices.store) == 1


@pytest.mark.parametrize(
    ("manager", "remedy"),
    [
        ("endpointslicemirroring-controller.k8s.io", "Endpoints web"),
        (None, "EndpointSlice stray"),
        ("another.example.com", "EndpointSlice stray"),
    ],
)
async def test_foreign_endpoints_of_a_copied_service_are_reported(manager, remedy):
    """They are never changed."""
    labels = {"kubernetes.io/service-name": "web"}
    if manager:
        labels["endpointslice.kubernetes.io/managed-by"] = manager
    stray = {"metadata": {"name": "stray", "namespace": "shop", "uid": "x", "labels": labels}}
    scene, key = await mirrored()
    scene.reported.clear()
    foreign = scene.controller.services.surroundings.foreign_slices
    scene.lower.feed(foreign)
    scene.lower.put("endpointslices", {**stray, "endpoints": [{"addresses": ["10.9.9.9"]}]})
    (found,) = foreign.store.list()
    assert not found.field_size("spec")
    for _ in range(2):
        await scene.controller.reconcile(key)
    assert scene.reported == [("Warning", "ForeignEndpoints")]
    assert f"delete {remedy}, or rename" in scene.messages[-1]
    assert scene.lower.the("endpointslices", "shop/stray")["endpoints"] == [{"addresses": ["10.9.9.9"]}]
