"""How a copy is written, and which pods wait for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from controller_runtime import resources
from controller_runtime.errors import ApiError, Forbidden
from tests.unit.virtual_node.controllers.services.service_controller_setup import Scene, foreign, mirrored
from virtual_node.controllers.services.endpoint_slices import EndpointSlices, LegacyEndpoints, endpoint_mirror

pytestmark = pytest.mark.looptime


async def test_a_recreated_service_is_a_new_copy():
    """A copy of the old uid is replaced."""
    scene, key = await mirrored()
    scene.add_service(uid="u-2")
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key), ("delete", key), ("create", key)]


async def test_families_that_the_lower_cluster_lacks_are_not_requested_twice():
    """The second try leaves the choice to it, and the result is not updated again."""
    scene = Scene()
    key = scene.add_service(ipFamilyPolicy="SingleStack", ipFamilies=["IPv6"])
    scene.add_pod()
    await scene.controller.reconcile(key)
    assert scene.lower.objects["services", key]["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    copy = scene.lower.objects["services", key]
    copy["spec"] |= {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}
    scene.lower.put(resources.SERVICES, copy)
    scene.lower.calls.clear()
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == []


async def test_an_older_cluster_gets_endpoints():
    """Where discovery.k8s.io/v1 is unknown, Endpoints are written instead of slices."""
    scene = Scene()
    context, caches = scene.context, scene.caches
    assert isinstance(await endpoint_mirror(context, caches, scene.controller._slices), EndpointSlices)
    scene.lower.without = {"endpointslices"}
    mirror = await endpoint_mirror(context, caches, scene.controller._slices)
    assert isinstance(mirror, LegacyEndpoints)
    scene.lower.informers["endpoints"] = mirror.lower
    scene.controller._endpoints = mirror
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    assert scene.lower.objects["endpoints", key]["subsets"] == [
        {"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}
    ]
    scene.remove_service(key)
    await scene.controller.reconcile(key)
    assert scene.lower.objects == {}


async def test_a_pod_waits_for_addresses_with_a_limit():
    """Until the copy has them, or two seconds; it does not wait for a taken name."""
    scene = Scene()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await scene.controller.settled("shop")
    assert loop.time() == begun
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.settled("shop")
    assert loop.time() - begun == pytest.approx(2)
    scene.lower.put(resources.SERVICES, foreign("web", "shop"))
    waiting = asyncio.ensure_future(scene.controller.settled("shop"))
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
    await scene.controller.settled("shop")
    begun = loop.time()
    scene.add_service(uid="u-2")
    await scene.controller.settled("shop")
    assert loop.time() - begun == pytest.approx(2)
    await scene.controller.reconcile(key)
    [copy] = scene.copies.store.list()
    copied = copy.to_dict()
    copied["spec"]["clusterIP"] = "10.97.0.1"
    scene.lower.put(resources.SERVICES, copied)
    begun = loop.time()
    await scene.controller.settled("shop")
    assert loop.time() == begun


async def test_a_refusal_is_reported_and_no_pod_waits_for_it():
    """A quota on Services must not delay the pods of the namespace; the next successful try clears it."""
    scene = Scene()
    loop = asyncio.get_running_loop()
    key = scene.add_service()
    scene.add_pod()
    create = scene.lower.create

    async def refuse(*_arguments, **_options):
        raise Forbidden("exceeded quota: services", code=403)

    scene.lower.create = refuse  # type: ignore[method-assign]
    with pytest.raises(Forbidden):
        await scene.controller.reconcile(key)
    assert scene.recorder.events == [("Warning", "FailedMirror")]
    begun = loop.time()
    await scene.controller.settled("shop")
    assert loop.time() == begun
    scene.lower.create = create  # type: ignore[method-assign]
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key)]


async def test_disabled_controller_runs_nothing_and_no_pod_waits():
    """``--enable-controllers=PVControllers``."""
    scene = Scene(enable_controllers=["PVControllers"])
    scene.add_service()
    begun = asyncio.get_running_loop().time()
    await scene.controller.run()
    await scene.controller.settled("shop")
    assert asyncio.get_running_loop().time() == begun
    assert scene.lower.calls == []


async def test_starts_when_the_lower_cluster_first_answers():
    """And never fails the others."""
    scene = Scene()
    failures = 3

    async def listing(resource, **_selection):
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ApiError("no")
        return SimpleNamespace(items=[])

    scene.lower.list = listing  # type: ignore[method-assign]
    assert isinstance(await scene.controller._choose(), EndpointSlices)
    assert failures == -1
