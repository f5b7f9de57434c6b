"""One upper pod, one lower pod, whatever happens to either: restarts, outages, meddling, names that come again."""

from __future__ import annotations

import asyncio
import json

import pytest

from controller_runtime.api import names
from controller_runtime.errors import (
    Conflict,
    ConnectionFailed,
    Invalid,
    NotConnected,
    TooManyRequests,
    Unavailable,
)
from tests.unit.virtual_node.controllers.scene import CLUSTER, Scene, clusters, mirroring, pod, running
from virtual_node.config import NodeConfig
from virtual_node.controllers.leftovers import Found

pytestmark = pytest.mark.looptime

KEY = "shop/web"


def lower_pod(uid: str, *, node: str = "vn", namespace: str = "shop", name: str = "web"):
    """A pod below that was made for the upper pod of that uid."""
    body = pod(name, uid=f"l-of-{uid}")
    body["metadata"]["labels"] = {
        names.LABEL_UPPER_CLUSTER: CLUSTER,
        names.LABEL_UPPER_UID: uid,
        names.LABEL_NODE: node,
    }
    body["metadata"]["annotations"] = {names.ANNOTATION_UPPER_NAMESPACE: namespace}
    return body


async def test_a_pod_is_made_below_and_its_status_comes_up():
    """The ordinary life, so that everything else here differs from it in one thing."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running", "podIP": "10.0.0.1"})
        await asyncio.sleep(1)
        above = scene.above()
        assert above is not None
        assert above["status"]["podIP"] == "10.0.0.1"
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(1)
        below = scene.below()
        assert below is not None
        assert below["metadata"]["deletionGracePeriodSeconds"] == 30
        assert scene.above() is not None  # it goes last
        scene.lower.vanish("pods", KEY)
        await asyncio.sleep(1)
        assert scene.above() is None


async def test_an_orphan_goes():
    """An upper pod that was removed by force takes its lower one along."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.upper.vanish("pods", KEY)
        await asyncio.sleep(1)
        below = scene.below()
        assert below is not None
        assert "deletionTimestamp" in below["metadata"]
        # It was seen to go: a Job's finished pods go so in thousands, and each would cost another question.
        assert scene.upper.asked("get", "pods") == []


async def test_a_cache_that_is_behind_is_no_reason_to_delete():
    """The upper watch says nothing since an outage: a pod that it has not shown yet is no orphan."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.upper.held.add("pods")
        scene.bind()
        scene.lower.put("pods", lower_pod("u-1"))  # another replica was quicker
        await asyncio.sleep(120)
        below = scene.below()
        assert below is not None
        assert "deletionTimestamp" not in below["metadata"]
        scene.upper.release("pods")
        await asyncio.sleep(10)
        above = scene.above()
        assert above is not None
        assert names.ANNOTATION_LOWER_UID in above["metadata"]["annotations"]


async def test_the_upper_pod_outlives_a_lower_one_that_the_cache_has_not_shown():
    """A StatefulSet counts on it: while the old pod may run below, its name above is not free."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.lower.held.add("pods")
        scene.bind()
        await asyncio.sleep(1)
        assert scene.below() is not None
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(60)
        below = scene.below()
        assert below is not None
        assert "deletionTimestamp" in below["metadata"]
        assert scene.above() is not None
        scene.lower.vanish("pods", KEY)
        scene.lower.release("pods")
        await asyncio.sleep(60)
        assert scene.above() is None


async def test_a_pod_whose_labels_somebody_took_off_is_claimed_again():
    """It still runs under the uid that we made: reporting it lost would have it started twice."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(1)
        scene.lower.change(
            "pods", KEY, metadata={"labels": {names.LABEL_UPPER_CLUSTER: None, names.LABEL_UPPER_UID: None}}
        )
        # As a server tells a watch whose selector the object has left.
        scene.caches.lower._remove(KEY, None)
        await asyncio.sleep(60)
        above, below = scene.above(), scene.below()
        assert above is not None
        assert below is not None
        assert above["status"]["phase"] == "Running"
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"


async def test_a_copy_of_a_mirrored_pod_starts():
    """A backup that is restored, or kubectl get -o yaml | kubectl create, brings our annotation along."""
    async with running() as scene:
        body = pod("web", uid="u-2", nodeName="vn")
        body["metadata"]["annotations"] = {names.ANNOTATION_LOWER_UID: "l-1/u-1"}
        scene.upper.put("pods", body)
        await asyncio.sleep(1)
        assert scene.below() is not None


async def test_a_pod_that_was_mirrored_is_not_started_again_after_a_restart():
    """Its lower half went while nobody looked: Failed, for its owner to decide."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(1)
        lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(1)
    lower.vanish("pods", KEY)
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(10)
        above = second.above()
        assert above is not None
        assert (above["status"]["phase"], above["status"]["reason"]) == ("Failed", "LowerPodDeleted")
        assert second.below() is None


async def test_a_pod_that_ran_is_not_started_again_whatever_its_mark_says():
    """An earlier release marked it with the lower uid alone, or nobody could mark it: its start time is proof enough."""
    upper, lower = clusters()
    body = pod("web", uid="u-1", nodeName="vn")
    body["metadata"]["annotations"] = {names.ANNOTATION_LOWER_UID: "l-1"}
    body["status"] |= {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    upper.put("pods", body)
    async with mirroring(Scene(upper, lower)) as scene:
        await asyncio.sleep(10)
        above = scene.above()
        assert above is not None
        assert (above["status"]["phase"], above["status"]["reason"]) == ("Failed", "LowerPodDeleted")
        assert scene.below() is None


async def test_a_predecessor_that_nobody_minds_makes_way():
    """Its virtual node was taken out of the configuration; its upper pod is gone, for this one has its name."""
    async with running() as scene:
        scene.lower.put("pods", lower_pod("u-0", node="vn-of-last-year"))
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.vanish("pods", KEY)
        await asyncio.sleep(60)
        below = scene.below()
        assert below is not None
        assert scene.lower.asked("delete", "pods") == [KEY]
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"


async def test_a_stale_upper_pod_does_not_push_out_its_successor():
    """Our cache still has the old pod; the one of its name below belongs to the new one, on another node."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.lower.fault = lambda verb, plural, _key: (
            Unavailable("down") if (verb, plural) == ("create", "pods") else None
        )
        scene.bind(uid="u-1")
        await asyncio.sleep(1)
        scene.upper.held.add("pods")
        scene.upper.vanish("pods", KEY)
        scene.upper.put("pods", pod("web", uid="u-2", nodeName="another"))
        scene.lower.put("pods", lower_pod("u-2", node="another"))
        scene.lower.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(120)
        assert scene.lower.asked("delete", "pods") == []


async def test_two_upper_namespaces_in_one_lower_one_are_told_apart():
    """Their pods of one name exclude each other; the second learns why it waits, and the first goes on."""
    async with running() as scene:
        scene.lower.put("pods", lower_pod("u-0", namespace="market", node="another"))
        scene.bind()
        await asyncio.sleep(60)
        assert [reason for reason, _ in scene.events] == ["NameConflict"]
        assert scene.lower.asked("delete", "pods") == []


async def test_what_is_wrong_is_said_until_it_is_heard():
    """The upper apiserver is overloaded when the pod's problem is to be written: it is written later."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.upper.fault = lambda verb, _plural, _key: TooManyRequests("later") if verb == "patch" else None
        scene.bind(volumes=[{"name": "c", "configMap": {"name": "missing"}}])
        await asyncio.sleep(5)
        scene.upper.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(60)
        above = scene.above()
        assert above is not None
        waiting = above["status"]["containerStatuses"][0]["state"]["waiting"]
        assert waiting["reason"] == "ContainerCreating"
        assert [reason for reason, _ in scene.events] == ["FailedMount"]


@pytest.mark.parametrize("claims", [[{"name": "gpu", "resourceClaimName": "g"}]])
async def test_a_pod_with_resource_claims_is_not_started_without_them(claims):
    """Claims are the upper cluster's; a pod that runs without its device is worse than one that waits."""
    async with running() as scene:
        scene.bind(resourceClaims=claims)
        await asyncio.sleep(10)
        assert scene.below() is None
        assert [reason for reason, _ in scene.events] == ["NotMirrored"]


async def test_a_pod_that_selects_nodes_of_another_pool_is_refused_as_by_a_scheduler():
    """It is not moved into this pool, where its user did not want it: both selectors are named, nothing is made below."""
    async with running() as scene:
        scene.context.nodes["vn"] = NodeConfig(name="vn", node_selector={"pool": "cpu", "zone": "a"})
        elsewhere = pod("web", uid="u-1", nodeName="vn")
        selector = json.dumps({"nodeSelector": {"pool": "gpu", "disk": "ssd"}})
        elsewhere["metadata"]["annotations"] = {names.ANNOTATION_CLUSTER_SELECTOR: selector}
        scene.upper.put("pods", elsewhere)
        scene.bind("fits", uid="u-2")
        await asyncio.sleep(10)
        below = scene.below("fits")
        assert below is not None
        assert below["spec"]["nodeSelector"] == {"pool": "cpu", "zone": "a"}
        assert scene.below() is None
        above = scene.above()
        assert above is not None
        (scheduled,) = (one for one in above["status"]["conditions"] if one["type"] == "PodScheduled")
        assert (above["status"]["phase"], scheduled["status"], scheduled["reason"]) == (
            "Pending", "False", "Unschedulable",
        )  # fmt: skip
        assert scene.events == [("FailedScheduling", scheduled["message"])]
        assert "pool=gpu" in scheduled["message"]
        assert "virtual node vn stands for those with pool=cpu" in scheduled["message"]
        agreeing = json.dumps({"nodeSelector": {"pool": "cpu", "disk": "ssd"}})
        scene.upper.change(
            "pods", KEY, metadata={"annotations": {names.ANNOTATION_CLUSTER_SELECTOR: agreeing}}
        )
        await asyncio.sleep(10)
        below = scene.below()
        assert below is not None
        assert below["spec"]["nodeSelector"] == {"pool": "cpu", "zone": "a", "disk": "ssd"}


async def test_a_namespace_that_is_made_again_while_it_is_looked_into_stays():
    """Looking into every kind takes seconds; meanwhile CI makes its namespace anew, and pods come."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.upper.vanish("pods", KEY)
        scene.lower.vanish("pods", KEY)

        async def find(namespace: str) -> Found:
            scene.upper.put("namespaces", {"metadata": {"name": namespace}})
            scene.bind(uid="u-2")
            await asyncio.sleep(3)
            return Found()

        scene.namespaces._leftovers.find = find  # type: ignore[method-assign]
        scene.upper.vanish("namespaces", "shop")
        await asyncio.sleep(60)
        assert scene.lower.find("namespaces", "shop") is not None
        assert scene.below() is not None


async def test_a_field_that_the_upper_cluster_refuses_holds_nothing_else_back():
    """A lower cluster of another version knows transitions that the upper one forbids; the rest is told all the same."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        accept = scene.upper.patch

        async def strict(resource, name, patch, **options):
            if "containerStatuses" in patch.get("status", {}):
                causes = [{"field": "status.containerStatuses[0].state"}]
                raise Invalid("forbidden", code=422, status={"details": {"causes": causes}})
            return await accept(resource, name, patch, **options)

        scene.upper.patch = strict  # type: ignore[method-assign]
        again = {"name": "main", "state": {"running": {}}}
        scene.lower.change("pods", KEY, status={"phase": "Running", "containerStatuses": [again]})
        await asyncio.sleep(10)
        above = scene.above()
        assert above is not None
        assert above["status"]["phase"] == "Running"
        assert names.ANNOTATION_LOWER_UID in above["metadata"]["annotations"]


@pytest.mark.parametrize("phase", ["Running", ""], ids=["what the lower pod says", "that it is lost"])
async def test_a_status_that_others_writes_pushed_aside_is_written_again(phase):
    """An API server tries a patch five times against other writers, and then answers Conflict: no event follows."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.upper.fault = lambda verb, _plural, _key: Conflict("modified") if verb == "patch" else None
        if phase:
            scene.lower.change("pods", KEY, status={"phase": phase})
        else:
            scene.lower.vanish("pods", KEY)
        await asyncio.sleep(1)
        scene.upper.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(60)
        above = scene.above()
        assert above is not None
        assert above["status"]["phase"] == (phase or "Failed")


async def test_a_pod_that_never_went_below_can_be_deleted_while_nobody_answers_there():
    """The lower cluster is down, and the pod is taken back: there is nothing to wait for."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.lower.fault = lambda _verb, _plural, _key: ConnectionFailed("down")
        scene.bind()
        await asyncio.sleep(5)
        await scene.upper.delete(scene.caches.lower.resource, "web", namespace="shop")
        await asyncio.sleep(60)
        assert scene.above() is None


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
        assert scene.above() is None


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
        assert scene.above() is not None
        scene.lower.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(120)
        below = scene.below()
        assert below is not None
        assert "deletionTimestamp" in below["metadata"]
        assert scene.above() is not None


async def test_a_copy_that_somebody_made_of_a_lower_pod_speaks_for_nobody():
    """With kubectl get -o yaml | kubectl create below it has all our labels; the pod that we made is the older one."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running", "podIP": "10.0.0.1"})
        await asyncio.sleep(1)
        for number in range(5):
            copied = lower_pod("u-1", name=f"copy-{number}")
            copied["metadata"] |= {"uid": f"copy-{number}", "creationTimestamp": "2026-01-02T00:00:00Z"}
            copied["status"] = {"phase": "Failed"}
            scene.lower.put("pods", copied)
        await asyncio.sleep(10)
        above = scene.above()
        assert above is not None
        assert above["status"]["phase"] == "Running"


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
        below = scene.below()
        assert below is not None
        assert "deletionTimestamp" in below["metadata"]


async def test_a_name_that_comes_again_is_another_pod():
    """The old pod is removed by force and made again at once: it ends below before the new one starts."""
    async with running() as scene:
        scene.bind(uid="u-1")
        await asyncio.sleep(1)
        scene.upper.vanish("pods", KEY)
        scene.bind(uid="u-2")
        await asyncio.sleep(10)
        below = scene.below()
        assert below is not None
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"
        assert "deletionTimestamp" in below["metadata"]
        scene.lower.vanish("pods", KEY)
        await asyncio.sleep(1)
        below = scene.below()
        assert below is not None
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-2"


async def test_a_pod_whose_watch_was_cut_while_it_ended_and_came_again_is_told_apart():
    """A list after an outage shows another pod of the name: the first has ended, the second is begun, nothing mixes."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind(uid="u-1")
        await asyncio.sleep(1)
        lower.change("pods", KEY, status={"phase": "Running", "podIP": "10.0.0.1"})
        await asyncio.sleep(1)
    upper.vanish("pods", KEY)
    upper.put("pods", pod("web", uid="u-2", nodeName="vn"))
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(1)
        above = second.above()
        assert above is not None
        assert "podIP" not in above["status"]
        lower.vanish("pods", KEY)
        await asyncio.sleep(1)
        below = second.below()
        assert below is not None
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-2"
