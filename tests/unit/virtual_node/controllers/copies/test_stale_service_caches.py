"""No lower object is deleted, or reverted, because of a stale cache."""

from __future__ import annotations

import pytest

from clusterset.model import names
from tests.unit.virtual_node.controllers.copies.service_controller_setup import mirrored

pytestmark = pytest.mark.looptime


async def test_a_service_missing_in_a_stale_cache_keeps_its_copy():
    """Another process has made it while this watch is behind: a new copy would have another address."""
    scene, key = await mirrored(with_slice=True)
    scene.upper.held.add("services")
    scene.upper_services._remove(key, None)
    result = await scene.controller.reconcile(key)
    assert result is not None
    assert result.requeue_after
    assert scene.wrote() == [("create", key)]
    assert len(scene.lower_slices.store) == 1


async def test_a_slice_missing_in_a_stale_cache_stays():
    """Otherwise its endpoints would be unreachable until the watch has caught up; deleted ones are removed."""
    scene, key = await mirrored(with_slice=True)
    scene.upper.held.add("endpointslices")
    scene.slices._remove("shop/web-1", None)
    await scene.controller.reconcile(key)
    assert len(scene.lower_slices.store) == 1
    scene.upper.remove("endpointslices", "shop/web-1")
    await scene.controller.reconcile(key)
    assert len(scene.lower_slices.store) == 0


async def test_a_service_of_a_later_uid_is_not_replaced_by_an_earlier_one():
    """The cache still has the deleted Service; the copy belongs to its successor and keeps its address."""
    scene, key = await mirrored()
    copy = scene.copy()
    copy["metadata"]["labels"][names.LABEL_UPPER_UID] = "u-2"
    scene.lower.put("services", copy)
    scene.fall_behind()
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key)]


@pytest.mark.parametrize("is_gone_above", [True, False])
async def test_copy_that_another_process_deleted_is_not_recreated_from_a_stale_cache(is_gone_above):
    """Otherwise both processes would create and delete the copy until the cache catches up."""
    scene, key = await mirrored()
    scene.lower.remove("services", key)
    if is_gone_above:
        scene.fall_behind()
    await scene.controller.reconcile(key)
    again = [] if is_gone_above else [("create", key)]
    assert scene.wrote() == [("create", key), *again]


async def test_a_slice_that_an_earlier_release_copied_gets_the_name_of_its_source():
    """Without the annotation, it looks like the copy of a slice that is gone."""
    scene, key = await mirrored(with_slice=True)
    copy = scene.copy("endpointslices")
    del copy["metadata"]["annotations"][names.ANNOTATION_SOURCE]
    scene.lower.put("endpointslices", copy)
    scene.lower.calls.clear()
    for _ in range(2):
        await scene.controller.reconcile(key)
    verbs = [verb for verb, plural, _ in scene.lower.calls if plural == "endpointslices" and verb != "list"]
    assert verbs == ["patch"]
    assert scene.copy("endpointslices")["metadata"]["annotations"][names.ANNOTATION_SOURCE] == "web-1"


async def test_endpoints_stay_while_the_copy_of_their_service_is_replaced():
    scene, key = await mirrored(with_slice=True)
    piece = scene.copy("endpointslices")["metadata"]["name"]
    scene.lower.held.add("services")
    scene.lower.remove("services", key)
    scene.lower_services._remove(key, None)
    await scene.controller.slices.reconcile("shop/web-1")
    assert len(scene.lower_slices.store) == 1
    scene.lower.release("services")
    await scene.controller.reconcile(key)
    assert scene.copy("endpointslices")["metadata"]["name"] == piece


async def test_endpoints_that_another_process_copied_stay_while_this_one_does_not_see_the_service():
    """The lower watch of Services is behind that of EndpointSlices."""
    scene, key = await mirrored(with_slice=True)
    scene.lower.held.add("services")
    scene.lower_services._remove(key, None)
    scene.upper.remove("pods", "shop/pod")
    await scene.controller.slices.reconcile("shop/web-1")
    assert len(scene.lower_slices.store) == 1
