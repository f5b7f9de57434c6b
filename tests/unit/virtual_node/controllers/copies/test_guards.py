"""What must hold for the copies of every kind, because all of them have one writer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceMap
from controller_runtime.errors import Unavailable
from tests.fakes.apiserver.client import refusing
from tests.unit.virtual_node.controllers import pod_controller_setup
from tests.unit.virtual_node.controllers.copies.follow_setup import Scene
from virtual_node.controllers.copies.surroundings import GRACE
from virtual_node.translate.kinds import FOLLOWED

pytestmark = pytest.mark.looptime
BACKEND = {"service": {"name": "web", "port": {"number": 80}}}
SPECS: dict[str, Any] = {
    "networkPolicies": {"podSelector": {}, "policyTypes": ["Ingress"]},
    "podDisruptionBudgets": {"selector": {}},
    "ingresses": {"defaultBackend": BACKEND},
    "gateways": {"gatewayClassName": "c", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    "serviceExports": {"exportedLabels": {"team": "a"}},
}
every_kind = pytest.mark.parametrize("setting", SPECS)


def _scene(setting: str) -> tuple[Scene, str]:
    """Create a pod, a copied Service and an upper object; return its key, too."""
    scene = Scene(setting)
    scene.add_pod()
    metadata = {
        "name": "web", "namespace": "shop", "uid": "copy-web",
        "labels": {names.LABEL_UPPER_CLUSTER: "upper-1"},
        "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "shop"},
    }  # fmt: skip
    scene.lower.put("services", {"metadata": metadata, "spec": {}})
    return scene, scene.add(SPECS[setting])


async def _copied(setting: str) -> tuple[Scene, str, str]:
    """Create a copy; return its key in the lower cluster, too."""
    scene, key = _scene(setting)
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    return scene, key, f"shop/{copy['metadata']['name']}"


def test_every_followed_kind_is_tested():
    assert {kind.setting for kind in FOLLOWED} == SPECS.keys()


@every_kind
async def test_an_unmanaged_object_is_never_changed_and_is_reported_once(setting):
    scene, key, copy_key = await _copied(setting)
    scene.lower.remove(scene.kind.resource.plural, copy_key)
    scene.add_foreign(copy_key.partition("/")[2])
    for _ in range(2):
        assert await scene.controller.reconcile(key) is not None
    scene.upper.remove(scene.kind.resource.plural, key)
    await scene.controller.reconcile(key)
    assert scene.lower.the(scene.kind.resource.plural, copy_key)["spec"] == {"theirs": True}
    assert [reason for reason, _ in scene.reported] == [f"{scene.kind.kind}Conflict"]


@every_kind
async def test_a_changed_copy_is_repaired_and_an_equal_one_is_not_written(setting):
    scene, key, copy_key = await _copied(setting)
    await scene.controller.reconcile(key)
    assert scene.writes() == ["create"]
    scene.lower.change(scene.kind.resource.plural, copy_key, spec={"meddled": "with"})
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert "meddled" not in copy["spec"]


@every_kind
async def test_a_process_that_is_behind_does_not_revert_another_one(setting):
    scene, key, copy_key = await _copied(setting)
    plural = scene.kind.resource.plural
    scene.upper.held.add(plural)
    scene.upper.change(plural, key, metadata={"labels": {"changed": "later"}})
    scene.lower.change(plural, copy_key, spec={"written": "by the other"})
    await scene.controller.reconcile(key)
    assert scene.writes() == ["create"]
    scene.upper.release(plural)
    await scene.controller.reconcile(key)
    assert scene.writes() == ["create", "patch"]


@every_kind
async def test_a_copy_that_only_this_cache_misses_above_stays(setting):
    scene, key, _ = await _copied(setting)
    scene.controller._upper.store.remove(key)
    result = await scene.controller.reconcile(key)
    assert result is not None
    assert scene.copy() is not None


@every_kind
async def test_a_copy_of_a_deleted_object_is_deleted_at_once(setting):
    scene, key, _ = await _copied(setting)
    scene.upper.remove(scene.kind.resource.plural, key)
    await scene.controller.reconcile(key)
    assert scene.copy() is None


@every_kind
async def test_an_object_has_no_copy_until_there_is_room(setting):
    """Otherwise the objects of one tenant could stop the lower cluster for all."""
    scene, key = _scene(setting)
    scene.lower.fill()
    result = await scene.controller.reconcile(key)
    assert result is not None
    assert result.requeue_after == 60
    assert scene.copy() is None
    assert [reason for reason, _ in scene.reported] == ["LowerClusterFull"]
    scene.lower.fill("other")
    await scene.controller.reconcile(key)
    assert scene.copy() is not None


@every_kind
async def test_a_copy_that_pods_of_another_process_need_stays(setting):
    scene, key, _ = await _copied(setting)
    scene.upper.remove("pods", "shop/pod")
    theirs = pod_controller_setup.lower_pod("theirs", node="vn-other")
    scene.lower.put("pods", theirs)
    for _ in range(3):
        await scene.controller.reconcile(key)
        await asyncio.sleep(GRACE + 1)
    assert scene.copy() is not None


@every_kind
async def test_a_copy_of_a_former_mapping_is_deleted(setting):
    scene, key, _ = await _copied(setting)
    scene.lower.feed(scene.all_caches.lower_namespaces)
    for name in ("shop", "other"):
        scene.lower.put("namespaces", pod_controller_setup.lower_namespace("shop", name=name))
    scene.context.rules.namespace_map = NamespaceMap(explicit={"shop": "other"})
    await scene.controller.reconcile(key)
    assert "shop" not in {copy.namespace for copy in scene.copies.store.list()}


@every_kind
async def test_a_temporary_error_is_retried_and_writes_no_event(setting):
    scene, key = _scene(setting)
    scene.lower.fault = refusing(Unavailable("down"), scene.kind.resource.plural)
    with pytest.raises(Unavailable):
        await scene.controller.reconcile(key)
    assert scene.reported == []
    scene.lower.fault = lambda _verb, _plural, _key: None
    await scene.controller.reconcile(key)
    assert scene.copy() is not None
