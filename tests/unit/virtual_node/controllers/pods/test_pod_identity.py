"""Which pod below belongs to which above, after restarts, outages, meddling, and names that come again."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.api import names
from controller_runtime.errors import Unavailable
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    KEY,
    Scene,
    clusters,
    lower_pod,
    mirroring,
    pod,
    running,
)

pytestmark = pytest.mark.looptime

DELETING = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30}


async def test_a_cache_that_is_behind_is_no_reason_to_delete():
    """The upper watch says nothing since an outage: a pod that it has not shown yet is no orphan."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.upper.held.add("pods")
        scene.bind()
        scene.lower.put("pods", lower_pod("u-1"))  # another replica was quicker
        await asyncio.sleep(120)
        assert "deletionTimestamp" not in scene.below()["metadata"]
        scene.upper.release("pods")
        await asyncio.sleep(10)
        assert names.ANNOTATION_LOWER_UID in scene.above()["metadata"]["annotations"]


@pytest.mark.parametrize("label", [names.LABEL_UPPER_CLUSTER, names.LABEL_UPPER_UID, names.LABEL_NODE])
async def test_any_label_of_ours_that_somebody_takes_off_is_put_back(label):
    """Without it our watch does not show the pod, however many of the others it has."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, metadata={"labels": {label: None}})
        await asyncio.sleep(30)
        assert scene.below()["metadata"]["labels"][label]
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(10)
        assert scene.above()["status"]["phase"] == "Running"


@pytest.mark.parametrize("is_forced", [False, True])
async def test_a_pod_without_our_labels_ends_below_with_the_one_above(is_forced):
    """Its labels are taken off while it is being deleted above: it would run on for ever, and nobody would know."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.fault = lambda verb, _plural, _key: Unavailable("down") if verb == "patch" else None
        scene.lower.change("pods", KEY, metadata={"labels": {names.LABEL_UPPER_CLUSTER: None}})
        await asyncio.sleep(1)
        if is_forced:
            scene.upper.vanish("pods", KEY)
        else:
            scene.upper.change("pods", KEY, metadata=DELETING)
        await asyncio.sleep(30)
        assert "deletionTimestamp" in scene.below()["metadata"]
        assert (scene.upper.find("pods", KEY) is None) is is_forced
        scene.lower.vanish("pods", KEY)
        await asyncio.sleep(30)
        assert scene.upper.find("pods", KEY) is None


async def test_a_pod_that_lost_its_labels_while_nobody_looked_ends_below_with_the_one_above():
    """The process is new and has never seen it; what the upper pod says of it has to do."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(10)
    lower.change("pods", KEY, metadata={"labels": {names.LABEL_UPPER_CLUSTER: None}})
    upper.change("pods", KEY, metadata=DELETING)
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(30)
        assert "deletionTimestamp" in second.below()["metadata"]
        assert second.is_above()
        lower.vanish("pods", KEY)
        await asyncio.sleep(30)
        assert not second.is_above()


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
        await asyncio.sleep(60)
        above, below = scene.above(), scene.below()
        assert above["status"]["phase"] == "Running"
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"


async def test_a_copy_of_a_mirrored_pod_starts():
    """A backup that is restored, or kubectl get -o yaml | kubectl create, brings our annotation along."""
    async with running() as scene:
        body = pod("web", uid="u-2", nodeName="vn")
        body["metadata"]["annotations"] = {names.ANNOTATION_LOWER_UID: "l-1/u-1"}
        scene.upper.put("pods", body)
        await asyncio.sleep(1)
        assert scene.is_below()


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
        assert (above["status"]["phase"], above["status"]["reason"]) == ("Failed", "LowerPodDeleted")
        assert not second.is_below()


async def test_a_token_that_was_deleted_while_nobody_looked_is_made_again_at_start():
    """The pod runs below and reads it for as long as it lives; nothing else would bring it back."""
    upper, lower = clusters()
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    first = Scene(upper, lower, enable_serviceaccount=True)
    async with mirroring(first):
        first.bind(volumes=[{"name": "token", **token}])
        await asyncio.sleep(10)
        [(_, key)] = [one for one in lower.objects if one[0] == "secrets"]
        assert first.is_below()
    lower.vanish("secrets", key)
    async with mirroring(Scene(upper, lower, enable_serviceaccount=True)):
        await asyncio.sleep(10)
        assert lower.find("secrets", key)


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
        assert (above["status"]["phase"], above["status"]["reason"]) == ("Failed", "LowerPodDeleted")
        assert not scene.is_below()


async def test_a_predecessor_that_nobody_minds_makes_way():
    """Its virtual node was taken out of the configuration; its upper pod is gone, for this one has its name."""
    async with running() as scene:
        scene.lower.put("pods", lower_pod("u-0", node="vn-of-last-year"))
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.vanish("pods", KEY)
        await asyncio.sleep(60)
        below = scene.below()
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
        assert scene.above()["status"]["phase"] == "Running"


async def test_a_name_that_comes_again_is_another_pod():
    """The old pod is removed by force and made again at once: it ends below before the new one starts."""
    async with running() as scene:
        scene.bind(uid="u-1")
        await asyncio.sleep(1)
        scene.upper.vanish("pods", KEY)
        scene.bind(uid="u-2")
        await asyncio.sleep(10)
        below = scene.below()
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"
        assert "deletionTimestamp" in below["metadata"]
        scene.lower.vanish("pods", KEY)
        await asyncio.sleep(1)
        assert scene.below()["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-2"


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
        assert "podIP" not in second.above()["status"]
        lower.vanish("pods", KEY)
        await asyncio.sleep(1)
        assert second.below()["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-2"
