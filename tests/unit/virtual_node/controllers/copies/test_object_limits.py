"""References of one pod, and of one namespace, use a bounded number of connections and requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.errors import Forbidden
from controller_runtime.objects import Object, from_dict
from controller_runtime.store import NamespaceBudget, is_stub
from tests.thorough import size
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene, clusters, mirroring, pod, running
from virtual_node.config.types import LimitsConfig
from virtual_node.controllers.copies.single_objects import ObjectKey

pytestmark = pytest.mark.looptime


def referencing(*numbers: int, optional: bool = False) -> list[dict[str, Any]]:
    """Return containers of a pod that references ConfigMaps by number."""
    sources = [{"configMapRef": {"name": f"c-{number}", "optional": optional}} for number in numbers]
    return [{"name": "main", "image": "i", "envFrom": sources}]


def put_config_maps(scene: Scene, *numbers: int, namespace: str = "shop", value: str = "1") -> None:
    """Create ConfigMaps in the upper cluster."""
    for number in numbers:
        metadata = {"name": f"c-{number}", "namespace": namespace}
        scene.upper.put("configmaps", {"kind": "ConfigMap", "metadata": metadata, "data": {"a": value}})


def watched(scene: Scene) -> int:
    """Return the number of watched objects."""
    return len(scene.dependencies._watches._informers)


async def test_a_pod_with_too_many_references_waits_without_requests():
    """The attack (H4): a pod of 15 KB that references 300 objects."""
    async with running() as scene:
        scene.bind(containers=referencing(*range(300), optional=True))
        scene.bind("small", uid="u-2", containers=referencing(1, optional=True))
        await asyncio.sleep(300)
        assert not scene.is_below()
        assert scene.is_below("small")
        assert watched(scene) == 1
        assert len(scene.lower.asked("create", "configmaps")) == 1
        ((reason, message),) = scene.events
        assert reason == "TooManyReferences"
        assert "references 300" in message
        assert "at most 100 per pod (limits.referencesPerPod" in message
        waiting = scene.above()["status"]["containerStatuses"][0]["state"]["waiting"]
        assert waiting["reason"] == "TooManyReferences"


async def test_tokens_count_as_references():
    """Each costs repeated requests to the upper cluster."""
    sources = [{"serviceAccountToken": {"path": f"t-{number}", "audience": "a"}} for number in range(101)]
    async with running() as scene:
        scene.bind(volumes=[{"name": "t", "projected": {"sources": sources}}])
        await asyncio.sleep(10)
        assert not scene.is_below()
        assert [reason for reason, _ in scene.events] == ["TooManyReferences"]


async def test_debug_containers_do_not_exceed_the_limit_of_their_pod():
    """A user may add any number of them."""
    async with running() as scene:
        scene.bind(containers=referencing(*range(100), optional=True))
        await asyncio.sleep(10)
        assert scene.is_below()
        debugger = {**referencing(100, optional=True)[0], "name": "d"}
        scene.upper.change("pods", "shop/web", spec={"ephemeralContainers": [debugger]})
        await asyncio.sleep(10)
        assert "ephemeralContainers" not in scene.below()["spec"]
        assert [reason for reason, _ in scene.events] == ["TooManyReferences"]


async def test_pods_of_a_namespace_wait_over_its_limit():
    """Other namespaces continue, and so does this one when other pods of it have ended."""
    async with running(limits=LimitsConfig(references_per_namespace=10)) as scene:
        scene.upper.put("namespaces", {"kind": "Namespace", "metadata": {"name": "bank"}})
        for name, uid, numbers in (("one", "u-1", range(8)), ("two", "u-2", range(5, 12))):
            scene.bind(name, uid=uid, containers=referencing(*numbers, optional=True))
            await asyncio.sleep(1)
        other = pod("web", uid="u-3", nodeName="vn", containers=referencing(*range(8), optional=True))
        other["metadata"]["namespace"] = "bank"
        scene.upper.put("pods", other)
        scene.bind("three", uid="u-4", containers=referencing(1, optional=True))
        await asyncio.sleep(10)
        assert scene.is_below("one")
        assert scene.is_below("three")  # it references nothing new
        assert scene.lower.find("pods", "bank/web") is not None
        assert not scene.is_below("two")
        ((reason, message),) = scene.events
        assert reason == "TooManyReferences"
        assert "12 ConfigMaps and Secrets" in message
        assert "limits.referencesPerNamespace" in message
        for name in ("one", "three"):
            scene.upper.remove("pods", f"shop/{name}")
            scene.lower.remove("pods", f"shop/{name}")
        await asyncio.sleep(90)
        assert scene.is_below("two")


@pytest.mark.parametrize("watches", [50, 0], ids=["watched", "polled"])
async def test_pods_wait_over_the_limit_of_content(watches):
    """Other namespaces continue, and so does this one once pods with references to the other objects have ended."""
    limits = LimitsConfig(bytes_per_namespace=30000, watches_per_namespace=watches)
    async with running(limits=limits) as scene:
        scene.upper.put("namespaces", {"kind": "Namespace", "metadata": {"name": "bank"}})
        put_config_maps(scene, 1, 2, 3, value="x" * 12000)
        put_config_maps(scene, 1, 2, namespace="bank", value="x" * 12000)
        scene.bind("one", uid="u-1", containers=referencing(1, 2))
        await asyncio.sleep(1)
        scene.bind("two", uid="u-2", containers=referencing(3))
        other = pod("web", uid="u-3", nodeName="vn", containers=referencing(1, 2))
        other["metadata"]["namespace"] = "bank"
        scene.upper.put("pods", other)
        await asyncio.sleep(10)
        assert scene.is_below("one")
        assert scene.lower.find("pods", "bank/web") is not None
        assert not scene.is_below("two")
        assert scene.lower.find("configmaps", "shop/c-3") is None
        reason, message = scene.events[0]
        assert reason == "TooManyReferences"
        assert "With ConfigMap shop/c-3" in message
        assert "at most 30000 bytes per namespace (limits.bytesPerNamespace" in message
        scene.upper.remove("pods", "shop/one")
        scene.lower.remove("pods", "shop/one")
        await asyncio.sleep(200)
        assert scene.is_below("two")


async def test_many_pods_that_waited_for_room_start_together():
    """The first of them reads the object again; if each restarted the watch, it would end the one that others wait for."""
    limits = LimitsConfig(bytes_per_namespace=30000)
    async with running(limits=limits) as scene:
        put_config_maps(scene, 1, 2, 3, value="x" * 12000)
        scene.bind("one", uid="u-1", containers=referencing(1, 2))
        await asyncio.sleep(1)
        names = [f"p-{number}" for number in range(30)]
        for number, name in enumerate(names):
            scene.bind(name, uid=f"u-{name}-{number}", containers=referencing(3, optional=True))
        await asyncio.sleep(10)
        assert not any(map(scene.is_below, names))
        scene.upper.remove("configmaps", "shop/c-3")
        scene.upper.remove("pods", "shop/one")
        scene.lower.remove("pods", "shop/one")
        await asyncio.sleep(90)
        before = len(scene.upper.asked("list", "configmaps"))
        for number in range(30):
            scene.bind(f"q-{number}", uid=f"u-q-{number}", containers=referencing(3, optional=True))
        await asyncio.sleep(5)
        assert all(scene.is_below(f"q-{number}") for number in range(30))
        assert len(scene.upper.asked("list", "configmaps")) - before <= 1


@pytest.mark.parametrize("watches", [50, 0], ids=["watched", "polled"])
async def test_an_object_beyond_the_limit_keeps_its_copy(watches):
    """Neither cache keeps the new content; the copy follows again when the object is smaller."""
    limits = LimitsConfig(bytes_per_namespace=30000, watches_per_namespace=watches)
    async with running(limits=limits) as scene:
        put_config_maps(scene, 1, 2)
        scene.bind(containers=referencing(1, 2))
        await asyncio.sleep(10)
        put_config_maps(scene, 1, value="x" * 50000)
        put_config_maps(scene, 2, value="2")
        await asyncio.sleep(100)
        assert scene.lower.the("configmaps", "shop/c-1")["data"] == {"a": "1"}
        assert scene.lower.the("configmaps", "shop/c-2")["data"] == {"a": "2"}
        kept = scene.dependencies._watches.peek(ObjectKey("ConfigMap", "shop", "c-1"))
        assert kept is not None
        assert kept.size < 200
        assert "TooManyReferences" in {reason for reason, _ in scene.events}
        put_config_maps(scene, 1, value="3")
        await asyncio.sleep(100)
        assert scene.lower.the("configmaps", "shop/c-1")["data"] == {"a": "3"}


async def test_content_in_a_copy_alone_still_counts():
    """Otherwise a tenant could grow one object after the other, and the copies of all of them are kept."""
    budget: NamespaceBudget[ObjectKey] = NamespaceBudget(30000)
    keys = [ObjectKey("Secret", "shop", f"s-{number}") for number in range(3)]

    def state(number: int, size: int) -> Object:
        return from_dict(
            {
                "kind": "Secret",
                "metadata": {"name": f"s-{number}", "resourceVersion": str(size)},
                "data": {"a": "x" * size},
            }
        )

    assert not is_stub(budget.fit(keys[0], state(0, 12000)))
    assert not is_stub(budget.fit(keys[1], state(1, 12000)))
    assert is_stub(budget.fit(keys[1], state(1, 25000)))
    assert is_stub(budget.fit(keys[2], state(2, 12000)))
    assert not budget.fits_now(keys[2])
    budget.forget(keys[1])
    assert budget.fits_now(keys[2])
    assert not is_stub(budget.fit(keys[2], state(2, 12000)))
    for key in keys:
        budget.forget(key)
    assert not budget._sums
    assert not budget._sizes
    assert not budget._stubs


async def test_objects_beyond_the_limit_are_polled():
    """Unwatched objects are read when a pod starts, and about once a minute."""
    async with running(limits=LimitsConfig(watches_per_namespace=2)) as scene:
        put_config_maps(scene, *range(5))
        scene.bind(containers=referencing(*range(6)))
        await asyncio.sleep(10)
        assert watched(scene) == 2
        assert not scene.is_below()
        put_config_maps(scene, 5)
        await asyncio.sleep(75)
        assert scene.is_below()
        put_config_maps(scene, 4, value="2")
        await asyncio.sleep(75)
        assert scene.lower.the("configmaps", "shop/c-4")["data"] == {"a": "2"}
        put_config_maps(scene, 3, value="2")
        scene.bind("next", uid="u-2", containers=referencing(3))
        await asyncio.sleep(1)
        assert scene.is_below("next")
        assert scene.lower.the("configmaps", "shop/c-3")["data"] == {"a": "2"}
        scene.upper.remove("configmaps", "shop/c-2")
        await asyncio.sleep(75)
        scene.bind("late", uid="u-3", containers=referencing(2))
        await asyncio.sleep(10)
        assert not scene.is_below("late")
        before = len(scene.upper.asked("get", "configmaps"))
        for name in ("web", "next", "late"):
            scene.upper.remove("pods", f"shop/{name}")
            if scene.is_below(name):
                scene.lower.remove("pods", f"shop/{name}")
        await asyncio.sleep(90)
        after = len(scene.upper.asked("get", "configmaps"))
        await asyncio.sleep(600)
        assert len(scene.upper.asked("get", "configmaps")) == after
        assert after - before < 20


async def test_the_watches_of_a_lower_cluster_have_a_total_limit():
    """A user may have many namespaces."""
    limits = LimitsConfig(watches_per_namespace=2, watches=3)
    async with running(limits=limits) as scene:
        for number, namespace in enumerate(("shop", "bank", "farm")):
            scene.upper.put("namespaces", {"kind": "Namespace", "metadata": {"name": namespace}})
            body = pod("web", uid=f"u-{number}", nodeName="vn", containers=referencing(1, 2, optional=True))
            body["metadata"]["namespace"] = namespace
            scene.upper.put("pods", body)
        await asyncio.sleep(10)
        assert watched(scene) == 3
        assert scene.lower.find("pods", "farm/web") is not None


async def test_a_tenant_with_many_namespaces_does_not_take_all_watches():
    """The attack: many namespaces before those of others. Objects that lose their watch are polled."""
    limits = LimitsConfig(watches_per_namespace=2, watches=4)
    async with running(limits=limits) as scene:
        for number, namespace in enumerate(("shop", "attack", "bank", "farm")):
            scene.upper.put("namespaces", {"kind": "Namespace", "metadata": {"name": namespace}})
            put_config_maps(scene, 1, 2, namespace=namespace)
            body = pod("web", uid=f"u-{number}", nodeName="vn", containers=referencing(1, 2))
            body["metadata"]["namespace"] = namespace
            scene.upper.put("pods", body)
            await asyncio.sleep(10)
        informers = scene.dependencies._watches._informers
        assert sorted(key.namespace for key in informers) == ["attack", "bank", "farm", "shop"]
        lost = next(n for n in (1, 2) if ObjectKey("ConfigMap", "shop", f"c-{n}") not in informers)
        assert scene.dependencies._watches.peek(ObjectKey("ConfigMap", "shop", f"c-{lost}")) is not None
        put_config_maps(scene, lost, value="2")
        await asyncio.sleep(75)
        assert scene.lower.the("configmaps", f"shop/c-{lost}")["data"] == {"a": "2"}


async def test_polls_share_one_rate():
    """Thirteen hundred objects, which would be read once a minute each, are read less often, not faster."""
    limits = LimitsConfig(references_per_pod=5000, references_per_namespace=5000)
    async with running(limits=limits) as scene:
        put_config_maps(scene, *range(1300))
        scene.bind(containers=referencing(*range(1300)))
        await asyncio.sleep(60)
        assert scene.is_below()
        assert watched(scene) == 50
        before = len(scene.upper.asked("get", "configmaps"))
        seconds = size(40, 100)
        await asyncio.sleep(seconds)
        assert len(scene.upper.asked("get", "configmaps")) - before <= seconds * 20


async def test_unreadable_objects_are_not_polled_more_often():
    """With a missing upper right each failure is one request a minute, as a success is."""
    async with running(limits=LimitsConfig(watches=0)) as scene:
        await asyncio.sleep(1)
        scene.upper.fault = lambda _verb, plural, _key: Forbidden("no") if plural == "configmaps" else None
        scene.bind(containers=referencing(1, 2))
        await asyncio.sleep(600)
        assert not scene.is_below()
        assert len(scene.upper.asked("get", "configmaps")) <= 2 * 2 * 11


async def test_a_restart_keeps_the_limits():
    """Running pods keep what they reference, without a connection for each."""
    upper, lower = clusters()
    everything = LimitsConfig(references_per_pod=5000, references_per_namespace=5000, watches_per_namespace=0)
    async with mirroring(first := Scene(upper, lower, limits=everything)):
        put_config_maps(first, *range(300))
        first.bind(containers=referencing(*range(300)))
        await asyncio.sleep(60)
        assert first.is_below()
    async with mirroring(scene := Scene(upper, lower)):
        await asyncio.sleep(120)
        assert watched(scene) == 50
        assert scene.is_below()
        assert all(lower.find("configmaps", f"shop/c-{number}") for number in range(300))
        key = ObjectKey("ConfigMap", "shop", "c-299")
        assert scene.dependencies._watches.peek(key) is not None


async def test_a_change_of_an_object_reconciles_only_the_pods_that_wait_for_it():
    """Ten thousand running pods may use one ConfigMap, of which only the copy changes."""
    async with running() as scene:
        put_config_maps(scene, 1)
        for number in range(5):
            scene.bind(f"web-{number}", uid=f"u-{number}", containers=referencing(1))
        scene.bind("waits", uid="u-waits", containers=referencing(1, 2))
        await asyncio.sleep(70)
        assert scene.is_below("web-4")
        woken: list[str] = []
        scene.dependencies.wake = woken.append
        put_config_maps(scene, 1, value="new")
        await asyncio.sleep(5)
        assert scene.lower.the("configmaps", "shop/c-1")["data"] == {"a": "new"}
        assert set(woken) == {"u-waits"}
