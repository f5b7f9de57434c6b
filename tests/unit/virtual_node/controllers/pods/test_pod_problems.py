"""Reasons why a pod, or its status, is not mirrored are reported, and affect nothing else."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from clusterset.model import names
from controller_runtime.errors import Conflict, Invalid, TooManyRequests
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, pod, running
from tests.workloads import manifest

pytestmark = pytest.mark.looptime


async def test_a_problem_is_written_until_it_succeeds():
    """The upper apiserver is overloaded at the first try."""
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


async def test_a_pod_that_waits_for_a_volume_fails_at_its_deadline():
    """Its containers never ran, so they have no exit code; the ConfigMap that comes later starts nothing."""
    async with running() as scene:
        await asyncio.sleep(1)
        missing = [{"name": "c", "configMap": {"name": "missing"}}]
        scene.bind(volumes=missing, activeDeadlineSeconds=20)
        await asyncio.sleep(15)
        assert scene.above()["status"]["phase"] == "Pending"
        await asyncio.sleep(10)
        status = scene.above()["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
        assert [list(one["state"]) for one in status["containerStatuses"]] == [["waiting"]]
        assert [reason for reason, _ in scene.events] == ["FailedMount", "DeadlineExceeded"]
        scene.upper.put("configmaps", manifest("ConfigMap", "missing", metadata={"namespace": "team"}))
        await asyncio.sleep(60)
        assert not scene.is_below()


@pytest.mark.parametrize("claims", [[{"name": "gpu", "resourceClaimName": "g"}]])
async def test_a_pod_with_resource_claims_waits(claims):
    """Claims are not mirrored; a pod that runs without its device is worse than one that waits."""
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
async def test_an_invalid_cluster_selector_refuses_the_pod(text: str, said: str):
    """A pod without the label is not seen by the webhook. The event names the field; once corrected, the pod starts."""
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
    """It is not moved into this pool: both selectors are named, nothing is created in the lower cluster."""
    async with running() as scene:
        options = scene.context.options
        options["vn"] = replace(options["vn"], pool={"pool": "cpu", "zone": "a"})
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


async def test_a_field_that_the_upper_cluster_refuses_does_not_block_others():
    """A lower cluster of another version may make transitions that the upper one forbids; the rest is mirrored."""
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
async def test_a_status_write_that_conflicts_is_retried(phase):
    """An API server tries a patch five times against other writers, and then answers Conflict: no event follows."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.upper.fault = lambda verb, _plural, _key: Conflict("modified") if verb == "patch" else None
        if phase:
            scene.lower.change("pods", KEY, status={"phase": phase})
        else:
            scene.lower.remove("pods", KEY)
        await asyncio.sleep(1)
        scene.upper.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(60)
        assert scene.above()["status"]["phase"] == (phase or "Failed")


async def test_an_ignored_annotation_is_an_event_of_a_pod_that_runs():
    """Written once, also for a pod without the label, which no webhook has seen."""
    async with running() as scene:
        wrong = pod("web", uid="u-1", nodeName="vn")
        wrong["metadata"]["annotations"] = {names.ANNOTATION_KUBERNETES_SERVICE: "uper"}
        scene.upper.put("pods", wrong)
        await asyncio.sleep(60)
        assert scene.is_below()
        assert scene.events == [
            (
                "IgnoredAnnotation",
                f"metadata.annotations[{names.ANNOTATION_KUBERNETES_SERVICE}]: 'uper': write upper, lower or auto",
            )
        ]
