"""A Service is mirrored as long as pods, or the configuration of an installation, need it."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.virtual_node.controllers.copies.service_controller_setup import Scene, mirrored
from virtual_node.config import types as configuration
from virtual_node.controllers.copies.surroundings import GRACE, NamespaceUsers

pytestmark = pytest.mark.looptime


async def test_a_service_is_mirrored_with_the_first_pod_of_its_namespace():
    """Not before, and its endpoints with it."""
    scene = Scene()
    key = scene.add_service()
    scene.add_slice()
    await scene.controller.reconcile(key)
    assert scene.wrote() == []
    scene.add_pod()
    assert await scene.controller.reconcile(key) is None
    assert scene.wrote() == [("create", key)]
    assert len(scene.lower_slices.store) == 1
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key)]


async def test_an_unused_namespace_keeps_its_copies_for_a_while():
    """The grace period starts with the last pod's end, a new pod ends it; afterwards everything is deleted."""
    scene, key = await mirrored(with_slice=True)
    scene.upper.remove("pods", "shop/pod")
    again = await scene.controller.reconcile(key)
    assert again is not None
    assert again.requeue_after == GRACE
    await asyncio.sleep(GRACE - 1)
    later = await scene.controller.reconcile(key)
    assert later is not None
    assert later.requeue_after == pytest.approx(1)
    assert scene.wrote() == [("create", key)]
    await asyncio.sleep(1)
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key), ("delete", key)]
    assert len(scene.lower_slices.store) == 0


async def test_copies_that_another_process_needs_stay():
    """Virtual nodes of one upper cluster in two processes share the copies."""
    scene, key = await mirrored()
    scene.upper.remove("pods", "shop/pod")
    await scene.controller.reconcile(key)
    await asyncio.sleep(GRACE)
    scene.add_others_pod()
    later = await scene.controller.reconcile(key)
    assert later is not None
    assert later.requeue_after == GRACE
    assert scene.wrote() == [("create", key)]


async def test_a_copy_that_another_process_recreates_is_left_to_it():
    """Its lower pods do not exist yet: the two would create and delete the copy in a loop."""
    scene, key = await mirrored()
    copy = scene.copy()
    scene.upper.remove("pods", "shop/pod")
    await scene.controller.reconcile(key)
    await asyncio.sleep(GRACE)
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key), ("delete", key)]
    scene.lower.put("services", {**copy, "metadata": {**copy["metadata"], "uid": "made by the other"}})
    assert await scene.controller.reconcile(key) is None
    assert scene.wrote() == [("create", key), ("delete", key)]
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.upper.remove("pods", "shop/pod")
    await scene.controller.reconcile(key)
    await asyncio.sleep(GRACE)
    await scene.controller.reconcile(key)
    assert scene.wrote()[-1] == ("delete", key)


MINE, THEIRS = "always.virtual-node.io/vn", "always.virtual-node.io/vn-other"


def _marks(scene: Scene, key: str) -> set[str]:
    annotations = scene.lower.objects["services", key]["metadata"]["annotations"]
    return {mark for mark in annotations if mark.startswith("always.")}


async def test_services_that_an_installation_always_mirrors_are_annotated():
    """Each installation has its own annotation; a removed pattern removes it, and the copy stays for the pods."""
    scene = Scene(services=configuration.ServicesConfig(always=["shop/*"]))
    key = scene.add_service()
    await scene.controller.reconcile(key)
    assert _marks(scene, key) == {MINE}
    scene.add_pod()
    scene.context.settings.services.always = []
    await scene.controller.reconcile(key)
    assert _marks(scene, key) == set()
    await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key), ("patch", key)]
    scene.context.settings.services.always = ["shop/*"]
    await scene.controller.reconcile(key)
    assert _marks(scene, key) == {MINE}


async def test_services_that_another_installation_always_mirrors_stay():
    """However long they are unused here; without its annotation they are deleted as usual."""
    scene = Scene(services=configuration.ServicesConfig(always=["shop/*"]))
    key = scene.add_service()
    await scene.controller.reconcile(key)
    scene.lower.change("services", key, metadata={"annotations": {THEIRS: "true"}})
    scene.context.settings.services.always = []
    await scene.controller.reconcile(key)
    await asyncio.sleep(GRACE + 1)
    assert await scene.controller.reconcile(key) is None
    assert _marks(scene, key) == {THEIRS}
    scene.lower.change("services", key, metadata={"annotations": {THEIRS: None}})
    await scene.controller.reconcile(key)
    await asyncio.sleep(GRACE + 1)
    await scene.controller.reconcile(key)
    assert scene.wrote()[-1] == ("delete", key)


async def test_a_deleted_service_is_deleted_at_once():
    """Without a grace period, with the uid of the copy."""
    scene, key = await mirrored(with_slice=True)
    scene.upper.remove("services", key)
    await scene.controller.reconcile(key)
    assert scene.made() == set()


@pytest.mark.parametrize(
    ("namespace", "always", "expected"),
    [
        ("kube-system", ["kube-system/*"], True),
        ("kube-system", [], False),
        ("forbidden", [], False),
        ("elsewhere", ["elsewhere/w?b"], True),
    ],
)
async def test_which_services_are_mirrored(namespace, always, expected):
    """Pods bring none of kube-system, nor of forbidden namespaces; patterns need no pods."""
    scene = Scene(services=configuration.ServicesConfig(always=always))
    key = scene.add_service(namespace=namespace)
    if namespace != "elsewhere":
        scene.add_pod(namespace)
    await scene.controller.reconcile(key)
    assert bool(scene.wrote()) is expected


async def test_users_are_reported_at_the_first_pod_and_the_last():
    """And not in between."""
    scene = Scene()
    told: list[str] = []
    users = NamespaceUsers([scene.caches.upper["vn"]], on_change=told.append)
    scene.add_pod()
    scene.bind("other", uid="p-2")
    assert told == ["shop"]
    scene.upper.remove("pods", "shop/pod")
    assert told == ["shop"]
    assert "shop" in users
    scene.upper.remove("pods", "shop/other")
    assert told == ["shop", "shop"]
    assert "shop" not in users
    assert users.grace("shop") == GRACE
    await asyncio.sleep(GRACE / 2)
    scene.add_pod()
    scene.upper.remove("pods", "shop/pod")
    assert users.grace("shop") == GRACE
    await asyncio.sleep(GRACE + 1)
    assert users.grace("shop") == 0
