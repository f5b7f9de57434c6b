"""How a copy is written, and which pods wait for it."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.errors import Forbidden
from tests.fakes.apiserver.client import refusing
from tests.unit.virtual_node.controllers.copies.service_controller_setup import Scene, mirrored

pytestmark = pytest.mark.looptime


async def test_a_recreated_service_is_a_new_copy():
    """A copy of the old uid is replaced."""
    scene, key = await mirrored()
    scene.add_service(uid="u-2")
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key), ("delete", key), ("create", key)]


async def test_families_that_the_lower_cluster_lacks_are_not_requested_twice():
    """The second try leaves the choice to it, and the result is not updated again."""
    scene = Scene()
    key = scene.add_service(ipFamilyPolicy="SingleStack", ipFamilies=["IPv6"])
    scene.add_pod()
    await scene.controller.reconcile(key)
    assert scene.lower.objects["services", key]["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    copy = scene.lower.objects["services", key]
    copy["spec"] |= {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}
    scene.lower.put("services", copy)
    scene.lower.calls.clear()
    await scene.controller.reconcile(key)
    assert scene.wrote() == []


async def test_a_pod_waits_for_addresses_with_a_limit():
    """Until the copy has them, or two seconds; it does not wait for a taken name."""
    scene = Scene()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await scene.follow.settled("shop")
    assert loop.time() == begun
    key = scene.add_service()
    scene.add_pod()
    await scene.follow.settled("shop")
    assert loop.time() - begun == pytest.approx(2)
    scene.add_foreign()
    waiting = asyncio.ensure_future(scene.follow.settled("shop"))
    await asyncio.sleep(0)
    await scene.controller.reconcile(key)
    await waiting
    assert loop.time() - begun == pytest.approx(2)


async def test_a_pod_waits_for_an_address_where_a_headless_copy_is_to_be_replaced():
    """Otherwise the variables of its containers would have the upper cluster's address for their lifetime."""
    scene = Scene()
    loop = asyncio.get_running_loop()
    key = scene.add_service(clusterIP="None")
    scene.add_pod()
    await scene.controller.reconcile(key)
    await scene.follow.settled("shop")
    begun = loop.time()
    scene.add_service(uid="u-2")
    await scene.follow.settled("shop")
    assert loop.time() - begun == pytest.approx(2)
    await scene.controller.reconcile(key)
    copy = scene.copy()
    scene.lower.put("services", {**copy, "spec": {**copy["spec"], "clusterIP": "10.97.0.1"}})
    begun = loop.time()
    await scene.follow.settled("shop")
    assert loop.time() == begun


async def test_a_refusal_is_reported_and_no_pod_waits_for_it():
    """A quota on Services must not delay the pods of the namespace; the next successful try clears it."""
    scene = Scene()
    loop = asyncio.get_running_loop()
    key = scene.add_service()
    scene.add_pod()
    scene.lower.fault = refusing(Forbidden("exceeded quota: services", code=403), "services")
    with pytest.raises(Forbidden):
        await scene.controller.reconcile(key)
    assert scene.reported == [("Warning", "FailedMirror")]
    begun = loop.time()
    await scene.follow.settled("shop")
    assert loop.time() == begun
    scene.lower.fault = lambda *_request: None
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key), ("create", key)]


async def test_disabled_controller_runs_nothing_and_no_pod_waits():
    """``--enable-controllers=PVControllers``."""
    scene = Scene(enable_controllers=["PVControllers"])
    scene.add_service()
    begun = asyncio.get_running_loop().time()
    await scene.follow.run()
    await scene.follow.settled("shop")
    assert asyncio.get_running_loop().time() == begun
    assert scene.lower.calls == []


async def test_a_service_of_a_namespace_without_room_has_no_copy_until_there_is_room():
    """Otherwise the Services of one tenant could stop the lower cluster for all."""
    scene = Scene()
    key = scene.add_service()
    scene.add_pod()
    scene.lower.fill()
    for _ in range(3):
        result = await scene.controller.reconcile(key)
    assert result is not None
    assert result.requeue_after == 60
    assert scene.reported == [("Warning", "LowerClusterFull")]
    await scene.follow.settled("shop")
    scene.lower.fill("other")
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key)]


async def test_the_copy_of_a_service_does_not_grow_without_room_and_may_shrink():
    scene, key = await mirrored()
    scene.lower.fill()
    scene.upper.change("services", key, metadata={"annotations": {"text": "x" * 10_000}})
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key)]
    scene.upper.change("services", key, metadata={"annotations": {"text": "x"}})
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key), ("patch", key)]
