"""What keeps a pod, or its status, from being mirrored is told, and holds nothing else up."""

from __future__ import annotations

import asyncio
import json

import pytest

from controller_runtime.api import names
from controller_runtime.errors import Conflict, Invalid, TooManyRequests
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, pod, running
from virtual_node.config.types import NodeConfig

pytestmark = pytest.mark.looptime


async def test_what_is_wrong_is_said_until_it_is_heard():
    """The upper apiserver is overloaded when the pod's problem is to be written: it is written later."""
    async with running() as scene:
        await asyncio.sleep(1)
        scene.upper.fault = lambda verb, _plural, _key: TooManyRequests("later") if verb == "patch" else None
        scene.bind(volumes=[{"name": "c", "configMap": {"name": "missing"}}])
        await asyncio.sleep(5)
        scene.upper.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(60)
        waiting = scene.above()["status"]["containerStatuses"][0]["state"]["waiting"]
        assert waiting["reason"] == "ContainerCreating"
        assert [reason for reason, _ in scene.events] == ["FailedMount"]


@pytest.mark.parametrize("claims", [[{"name": "gpu", "resourceClaimName": "g"}]])
async def test_a_pod_with_resource_claims_is_not_started_without_them(claims):
    """Claims are the upper cluster's; a pod that runs without its device is worse than one that waits."""
    async with running() as scene:
        scene.bind(resourceClaims=claims)
        await asyncio.sleep(10)
        assert not scene.is_below()
        assert [reason for reason, _ in scene.events] == ["NotMirrored"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{nodeSelector", "Annotation clusterSelector: not JSON: JSON is malformed: "),
        (
            '{"nodeSelector": {"disk": 1}}',
            "Annotation clusterSelector.nodeSelector[...]: expected `str`, got `int`; ",
        ),
        ('["a"]', "Annotation clusterSelector: expected a JSON object; correct or remove the annotation"),
    ],
)
async def test_a_cluster_selector_that_cannot_be_read_refuses_the_pod(text: str, said: str):
    """A pod without our label is not seen by the webhook. The event names the field; once corrected, the pod starts."""
    async with running() as scene:
        wrong = pod("web", uid="u-1", nodeName="vn")
        wrong["metadata"]["annotations"] = {names.ANNOTATION_CLUSTER_SELECTOR: text}
        scene.upper.put("pods", wrong)
        await asyncio.sleep(10)
        assert not scene.is_below()
        ((reason, message),) = scene.events
        assert reason == "NotMirrored"
        assert message.startswith(said)
        annotations = {names.ANNOTATION_CLUSTER_SELECTOR: json.dumps({"nodeSelector": {"disk": "ssd"}})}
        scene.upper.change("pods", KEY, metadata={"annotations": annotations})
        await asyncio.sleep(10)
        assert scene.below()["spec"]["nodeSelector"] == {"disk": "ssd"}


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
        assert scene.below("fits")["spec"]["nodeSelector"] == {"pool": "cpu", "zone": "a"}
        assert not scene.is_below()
        above = scene.above()
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
        assert scene.below()["spec"]["nodeSelector"] == {"pool": "cpu", "zone": "a", "disk": "ssd"}


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
        assert scene.above()["status"]["phase"] == (phase or "Failed")
