"""A lower pod is created, runs and ends correctly, with outages and forced deletions at any time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import Histogram

from clusterset.model.autoscaling import Autoscaling, Shape
from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import ConnectionFailed, NotConnected
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, lower_pod, running
from virtual_node.controllers.namespaces import Found

pytestmark = pytest.mark.looptime


async def test_a_pod_is_created_and_its_status_mirrored():
    """The ordinary case."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running", "podIP": "10.0.0.1"})
        await asyncio.sleep(1)
        assert scene.above()["status"]["podIP"] == "10.0.0.1"
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(1)
        assert scene.below()["metadata"]["deletionGracePeriodSeconds"] == 30
        assert scene.is_above()  # it is deleted last
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(1)
        assert not scene.is_above()


async def test_steps_are_measured_by_operation():
    """For the series of the virtual node's kubelet API."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(1)
        before = _counts(scene.context.pod_work[scene.node])
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(1)
        after = _counts(scene.context.pod_work[scene.node])
    assert set(before) == {"create", "sync"}
    assert set(after) == {"create", "sync", "kill"}


def _counts(work: Histogram) -> dict[str, float]:
    """Return how many steps were measured, by operation."""
    return {
        sample.labels["operation_type"]: sample.value
        for family in work.collect()
        for sample in family.samples
        if sample.name.endswith("_count")
    }


async def test_scheduled_is_written_with_the_next_status_as_long_as_pods_start_slowly():
    """After 9 s alone, unless the previous pod started later than usual; this saves a write per pod in a burst."""
    scheduled = {"conditions": [{"type": "PodScheduled", "status": "True"}], "phase": "Pending"}
    started = {"phase": "Running", "containerStatuses": [{"name": "main", "started": True}]}

    async with running() as scene:

        async def start(name: str, *, after: float) -> int:
            """Return how many statuses were written for a pod that starts so many seconds after its creation."""
            scene.bind(name, uid=f"u-{name}")
            await asyncio.sleep(1)
            scene.lower.change("pods", f"shop/{name}", status=scheduled)
            before = len(scene.upper.asked("patch", "pods/status"))
            await asyncio.sleep(after - 1)
            scene.lower.change("pods", f"shop/{name}", status=started)
            await asyncio.sleep(1)
            return len(scene.upper.asked("patch", "pods/status")) - before

        await asyncio.sleep(1)
        assert await start("one", after=8) == 1
        assert await start("two", after=11) == 1, "the delay is 12 s after the start of one"
        await asyncio.sleep(20)
        assert await start("three", after=11) == 2, "the delay is 9 s again"


async def test_an_upper_pod_gets_the_zone_of_its_lower_pod_once():
    """If its virtual node has none. A later zone does not replace it, because containers have read the first."""
    zone = "topology.kubernetes.io/zone"
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        for value in ("z1", "z2"):
            scene.lower.change("pods", KEY, metadata={"labels": {zone: value}})
            await asyncio.sleep(60)
            assert scene.above()["metadata"]["labels"][zone] == "z1"
        assert scene.below()["metadata"]["labels"][zone] == "z2"


async def test_a_status_that_an_older_upper_cluster_shortens_is_written_once():
    """A field that its API server drops always differs: it is not sent again, and the rest is mirrored."""

    def without_generations(_plural: str, pod: Body) -> None:
        pod["status"].pop("observedGeneration", None)
        for condition in pod["status"].get("conditions") or ():
            condition.pop("observedGeneration", None)

    async with running(full_resync_period=5) as scene:
        scene.upper.server.drop_unknown = without_generations
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


_NO_ROOM: Body = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient cpu.",
        }
    ],
}


async def test_a_pod_that_does_not_fit_waits_by_default():
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, spec={"nodeName": ""}, status=_NO_ROOM)
        await asyncio.sleep(60)
        assert scene.is_below()
        assert scene.above()["status"]["phase"] == "Pending"


async def test_a_pod_that_does_not_fit_is_rejected_as_by_a_kubelet():
    """It fails with the kubelet's reason, and its lower pod is deleted before that."""
    async with running(on_unschedulable="Reject") as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, spec={"nodeName": ""}, status=_NO_ROOM)
        await asyncio.sleep(60)
        assert not scene.is_below()
        status = scene.above()["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "OutOfcpu")
        assert status["message"] == "Pod was rejected: 0/1 nodes are available: 1 Insufficient cpu."
        assert [reason for reason, _ in scene.events] == ["OutOfcpu"]


async def test_a_pod_that_may_wait_for_a_new_node_is_not_rejected_before():
    """The lower cluster can add nodes, and gets ``provisionSeconds`` for it."""
    shape = Shape(name="s", resources={"cpu": "1", "memory": "1Gi"})
    growth = Autoscaling(max_nodes=1, shapes=[shape], provision_seconds=300)
    async with running(on_unschedulable="Reject", autoscaling=growth) as scene:
        scene.bind()
        await asyncio.sleep(1)
        (refused,) = _NO_ROOM["conditions"]
        for minutes, is_kept in ((1, True), (6, False)):
            since = timestamps.rfc3339(datetime.now(UTC) - timedelta(minutes=minutes))
            status = {**_NO_ROOM, "conditions": [{**refused, "lastTransitionTime": since}]}
            scene.lower.change("pods", KEY, spec={"nodeName": ""}, status=status)
            await asyncio.sleep(60)
            assert scene.is_below() is is_kept
        assert scene.above()["status"]["reason"] == "OutOfcpu"


async def test_a_pod_that_gets_a_node_at_the_last_moment_is_not_rejected():
    """The cache still shows the refusal when the scheduler has bound the pod."""
    async with running(on_unschedulable="Reject") as scene:
        scene.bind()
        await asyncio.sleep(1)

        def bind(verb: str, plural: str, _key: str) -> None:
            if (verb, plural) == ("delete", "pods"):
                scene.lower.change("pods", KEY, spec={"nodeName": "worker"}, status={"conditions": []})

        scene.lower.fault = bind
        scene.lower.change("pods", KEY, spec={"nodeName": ""}, status=_NO_ROOM)
        await asyncio.sleep(30)
        assert scene.lower.asked("delete", "pods") == [KEY]
        assert scene.is_below()
        assert scene.above()["status"]["phase"] != "Failed"


async def test_an_orphan_is_deleted():
    """After the upper pod was force-deleted."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.upper.remove("pods", KEY)
        await asyncio.sleep(1)
        assert "deletionTimestamp" in scene.below()["metadata"]
        # Its deletion was seen: Jobs delete finished pods in thousands, and each would cost another read.
        assert scene.upper.asked("get", "pods") == []


async def test_a_lower_pod_shown_after_its_upper_one_finished_is_deleted():
    """A killed process had its creation in progress, and its successor has already reported the pod lost."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(10)
        assert scene.above()["status"]["phase"] == "Failed"
        scene.lower.put("pods", lower_pod("u-1"))
        await asyncio.sleep(10)
        assert "deletionTimestamp" in scene.below()["metadata"]


async def test_a_finished_pod_that_a_cache_shows_running_stays():
    """Another replica mirrored its final status while the lower watch is silent: its logs are still needed."""
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
    """A StatefulSet relies on it: while the old lower pod may run, the upper name must not be free."""
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
        scene.lower.remove("pods", KEY)
        scene.lower.release("pods")
        await asyncio.sleep(60)
        assert not scene.is_above()


async def test_a_pod_without_a_lower_one_can_be_deleted_during_an_outage():
    """The lower cluster is unreachable, and there is nothing to wait for."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.lower.fault = lambda _verb, _plural, _key: ConnectionFailed("down")
        scene.bind()
        await asyncio.sleep(5)
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(60)
        assert not scene.is_above()


async def test_a_pod_with_a_refused_connection_can_be_deleted_during_an_outage():
    """Its creation was sent because the namespace is known, and cannot have arrived."""
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


async def test_pods_are_created_at_once_when_an_outage_ends():
    """After an outage of an hour, the next retry would be up to a minute later."""
    async with running() as scene:
        scene.bind("first")
        await asyncio.sleep(1)
        scene.lower.fault = lambda _verb, _plural, _key: NotConnected("connection refused")
        scene.bind("web", uid="u-2")
        await asyncio.sleep(3600)
        scene.lower.outage.error = NotConnected("connection refused")
        scene.lower.fault = lambda _verb, _plural, _key: None
        scene.lower.outage.answered()
        await asyncio.sleep(0.1)
        assert scene.is_below()


async def test_a_pod_with_an_unanswered_creation_is_looked_up_before_its_name_is_free():
    """The connection broke: the lower pod may exist, and the watch is broken, too."""
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


async def test_a_pod_deleted_during_its_creation_leaves_nothing():
    """It was force-deleted during the request: the lower pod is deleted as soon as it is seen."""
    async with running() as scene:
        await asyncio.sleep(1)
        create = scene.lower.create

        async def slow(resource, body, **options):
            if resource is scene.caches.lower.resource:
                scene.upper.remove("pods", KEY)
                await asyncio.sleep(3)
            return await create(resource, body, **options)

        scene.lower.create = slow  # type: ignore[method-assign]
        scene.bind()
        await asyncio.sleep(10)
        assert "deletionTimestamp" in scene.below()["metadata"]


async def test_a_namespace_recreated_during_its_inspection_stays():
    """Listing every kind takes seconds; meanwhile the namespace is recreated, with pods."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.upper.remove("pods", KEY)
        scene.lower.remove("pods", KEY)

        async def find(namespace: str, *, upper_name: str) -> Found:
            scene.upper.put("namespaces", {"metadata": {"name": namespace}})
            scene.bind(uid="u-2")
            await asyncio.sleep(3)
            return Found()

        scene.namespaces._leftovers.find = find  # type: ignore[method-assign]
        scene.upper.remove("namespaces", "shop")
        await asyncio.sleep(60)
        assert scene.lower.find("namespaces", "shop") is not None
        assert scene.is_below()


async def test_a_lower_pod_that_is_deleted_before_the_cache_shows_it_is_reported():
    """The watch is held, and its history is compacted, so no event reports the lower pod."""
    async with running() as scene:
        scene.lower.held.add("pods")
        scene.bind()
        await asyncio.sleep(60)
        scene.lower.remove("pods", "shop/web")
        scene.lower.server.floor = scene.lower.server.version
        scene.lower.release("pods")
        await asyncio.sleep(60)
        assert scene.upper.the("pods", "shop/web")["status"]["reason"] == "LowerPodDeleted"


async def test_a_burst_of_pods_reads_and_creates_its_namespace_once():
    """All workers need the new lower namespace at the same time."""
    async with running() as scene:
        scene.lower.remove("namespaces", "shop")
        await asyncio.sleep(1)
        asked: list[str] = []

        def note(verb: str, plural: str, _key: str) -> None:
            if plural == "namespaces":
                asked.append(verb)

        scene.lower.fault = note
        for number in range(30):
            scene.bind(f"p{number}", uid=f"u-{number}")
        await asyncio.sleep(5)
        assert all(scene.is_below(f"p{number}") for number in range(30))
        assert sorted(asked) == ["create", "get"]


async def test_a_change_during_a_status_write_is_reported_as_soon_as_the_cache_shows_the_write():
    """It waits for the watch event of our write, which needs no reconciliation otherwise."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.upper.held.add("pods")
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(0.1)
        scene.lower.change("pods", KEY, status={"phase": "Running", "message": "news"})
        await asyncio.sleep(0.3)
        assert "message" not in scene.above()["status"]
        scene.upper.release("pods")
        await asyncio.sleep(0.01)
        assert scene.above()["status"]["message"] == "news"
