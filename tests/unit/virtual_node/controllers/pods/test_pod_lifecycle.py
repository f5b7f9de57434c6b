"""A pod is made below, lives and ends: whoever is away or removes it by force, and at whatever moment."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.errors import ConnectionFailed, NotConnected
from tests.unit.virtual_node.controllers.memory_apiserver import Body
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, lower_pod, running
from virtual_node.controllers.namespaces.contents import Found

pytestmark = pytest.mark.looptime


async def test_a_pod_is_made_below_and_its_status_comes_up():
    """The ordinary life, so that everything else here differs from it in one thing."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running", "podIP": "10.0.0.1"})
        await asyncio.sleep(1)
        assert scene.above()["status"]["podIP"] == "10.0.0.1"
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(1)
        assert scene.below()["metadata"]["deletionGracePeriodSeconds"] == 30
        assert scene.is_above()  # it goes last
        scene.lower.vanish("pods", KEY)
        await asyncio.sleep(1)
        assert not scene.is_above()


async def test_a_status_that_an_older_upper_cluster_shortens_is_written_once():
    """A field that its API server drops is a difference for ever: it is not sent again, and the rest arrives."""

    def without_generations(_plural: str, pod: Body) -> None:
        pod["status"].pop("observedGeneration", None)
        for condition in pod["status"].get("conditions") or ():
            condition.pop("observedGeneration", None)

    async with running(full_resync_period=5) as scene:
        scene.upper.keep = without_generations
        scene.bind()
        await asyncio.sleep(1)
        for number in (1, 2):
            written = len(scene.upper.asked("patch", "pods/status"))
            ready = {"type": "Ready", "status": "True", "reason": str(number), "observedGeneration": 1}
            scene.lower.change("pods", KEY, status={"observedGeneration": 1, "conditions": [ready]})
            await asyncio.sleep(60)
            scene.upper.change("pods", KEY, metadata={"labels": {"changed": str(number)}})
            await asyncio.sleep(60)
            assert scene.above()["status"]["conditions"][0]["reason"] == str(number)
            assert "observedGeneration" not in scene.above()["status"]
            assert len(scene.upper.asked("patch", "pods/status")) == written + 1


async def test_an_orphan_goes():
    """An upper pod that was removed by force takes its lower one along."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.upper.vanish("pods", KEY)
        await asyncio.sleep(1)
        assert "deletionTimestamp" in scene.below()["metadata"]
        # It was seen to go: a Job's finished pods go so in thousands, and each would cost another question.
        assert scene.upper.asked("get", "pods") == []


async def test_a_pod_that_appears_below_after_its_upper_one_has_finished_goes():
    """A killed process had its creation on the way, and its successor has called the pod lost already."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.vanish("pods", KEY)
        await asyncio.sleep(10)
        assert scene.above()["status"]["phase"] == "Failed"
        scene.lower.put("pods", lower_pod("u-1"))
        await asyncio.sleep(10)
        assert "deletionTimestamp" in scene.below()["metadata"]


async def test_a_finished_pod_that_a_cache_shows_running_stays_below():
    """Its last words came up by another replica while our watch below says nothing: its logs are still wanted."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(10)
        scene.lower.held.add("pods")
        scene.lower.change("pods", KEY, status={"phase": "Succeeded"})
        scene.upper.change("pods", KEY, status={"phase": "Succeeded"})
        await asyncio.sleep(60)
        assert scene.lower.asked("delete", "pods") == []


async def test_the_upper_pod_outlives_a_lower_one_that_the_cache_has_not_shown():
    """A StatefulSet counts on it: while the old pod may run below, its name above is not free."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.lower.held.add("pods")
        scene.bind()
        await asyncio.sleep(1)
        assert scene.is_below()
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(60)
        assert "deletionTimestamp" in scene.below()["metadata"]
        assert scene.is_above()
        scene.lower.vanish("pods", KEY)
        scene.lower.release("pods")
        await asyncio.sleep(60)
        assert not scene.is_above()


async def test_a_pod_that_never_went_below_can_be_deleted_while_nobody_answers_there():
    """The lower cluster is down, and the pod is taken back: there is nothing to wait for."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.lower.fault = lambda _verb, _plural, _key: ConnectionFailed("down")
        scene.bind()
        await asyncio.sleep(5)
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(60)
        assert not scene.is_above()


async def test_a_pod_can_be_deleted_while_nobody_listens_below_where_others_run():
    """Its creation went out, for the namespace is known to be there, and cannot have arrived."""
    async with running() as scene:
        scene.bind("first")
        await asyncio.sleep(1)
        scene.lower.fault = lambda _verb, _plural, _key: NotConnected("connection refused")
        scene.bind("web", uid="u-2")
        await asyncio.sleep(5)
        assert ("create", "pods", KEY) in scene.lower.calls
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(60)
        assert not scene.is_above()


async def test_a_pod_whose_creation_got_no_answer_is_looked_for_before_its_name_is_free():
    """The request was cut off: the pod may be there, and the watch is cut off, too."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.lower.held.add("pods")
        create = scene.lower.create

        async def cut_off(resource, body, **options):
            made = await create(resource, body, **options)
            if resource is scene.caches.lower.resource:
                scene.lower.fault = lambda verb, _plural, _key: (
                    ConnectionFailed("down") if verb in {"create", "get"} else None
                )
                raise ConnectionFailed("reset by peer")
            return made

        scene.lower.create = cut_off  # type: ignore[method-assign]
        scene.bind()
        await asyncio.sleep(5)
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(60)
        assert scene.is_above()
        scene.lower.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(120)
        assert "deletionTimestamp" in scene.below()["metadata"]
        assert scene.is_above()


async def test_a_pod_that_is_removed_while_it_is_being_created_leaves_nothing():
    """Removed by force in the very moment of the request: what it made below goes as soon as it shows."""
    async with running() as scene:
        await asyncio.sleep(1)
        create = scene.lower.create

        async def slow(resource, body, **options):
            if resource is scene.caches.lower.resource:
                scene.upper.vanish("pods", KEY)
                await asyncio.sleep(3)
            return await create(resource, body, **options)

        scene.lower.create = slow  # type: ignore[method-assign]
        scene.bind()
        await asyncio.sleep(10)
        assert "deletionTimestamp" in scene.below()["metadata"]


async def test_a_namespace_that_is_made_again_while_it_is_looked_into_stays():
    """Looking into every kind takes seconds; meanwhile CI makes its namespace anew, and pods come."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.upper.vanish("pods", KEY)
        scene.lower.vanish("pods", KEY)

        async def find(namespace: str, *, upper_name: str) -> Found:
            scene.upper.put("namespaces", {"metadata": {"name": namespace}})
            scene.bind(uid="u-2")
            await asyncio.sleep(3)
            return Found()

        scene.namespaces._leftovers.find = find  # type: ignore[method-assign]
        scene.upper.vanish("namespaces", "shop")
        await asyncio.sleep(60)
        assert scene.lower.find("namespaces", "shop") is not None
        assert scene.is_below()
