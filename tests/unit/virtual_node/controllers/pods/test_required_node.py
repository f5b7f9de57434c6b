"""A lower pod requires the lower node that was reserved for it, and gets another one if it does not fit there."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.policy.config import Policy
from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import ConnectionFailed
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    KEY,
    Scene,
    clusters,
    mirroring,
    pod,
    running,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _condition(status: str = "False", reason: str = "Unschedulable", *, ago: float = 60.0) -> dict[str, Any]:
    since = timestamps.rfc3339(datetime.now(UTC) - timedelta(seconds=ago))
    return {"type": "PodScheduled", "status": status, "reason": reason, "lastTransitionTime": since}


def _bind(scene: Scene, node: str = "n7", **annotations: str) -> None:
    """Create an upper pod for which the extender reserved a lower node."""
    body = pod("web", uid="u-1", nodeName="vn")
    chosen = dict.fromkeys((names.ANNOTATION_PREFERRED_NODE, names.ANNOTATION_REQUIRED_NODE), node)
    body["metadata"]["annotations"] = chosen | annotations
    scene.upper.put("pods", body)


def _refuse(scene: Scene) -> None:
    scene.lower.change("pods", KEY, spec={"nodeName": ""}, status={"conditions": [_condition()]})


def _node_affinity(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = scene.below()["spec"].get("affinity", {}).get("nodeAffinity", {})
    return found


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_lower_pod_requires_the_node_in_every_alternative():
    """Terms of a required node affinity are alternatives, and the user's own fields stay."""
    alternatives = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in ("disk", "zone")]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": alternatives}}}
    selector = json.dumps({"affinity": affinity})
    async with running() as scene:
        _bind(scene, clusterSelector=selector)
        await asyncio.sleep(1)
        terms = _node_affinity(scene)[REQUIRED]["nodeSelectorTerms"]
        assert [term["matchExpressions"][0]["key"] for term in terms] == ["disk", "zone"]
        own = [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]
        assert [term["matchFields"] for term in terms] == [own, own]


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_pod_without_room_on_its_node_gets_another_one():
    """The lower pod is replaced by one that only prefers the node, and the upper pod does not fail."""
    async with running() as scene:
        _bind(scene)
        await asyncio.sleep(20)
        first = scene.below()["metadata"]["uid"]
        _refuse(scene)
        await asyncio.sleep(20)
        assert scene.below()["metadata"]["uid"] != first
        assert REQUIRED not in _node_affinity(scene)
        assert len(_node_affinity(scene)[PREFERRED]) == 1
        assert scene.above()["status"]["phase"] == "Pending"
        assert scene.above()["metadata"]["annotations"][names.ANNOTATION_REQUIRED_NODE] == ""
        assert [reason for reason, _ in scene.events] == ["LowerNodeGivenUp"]
        second = scene.below()["metadata"]["uid"]
        _refuse(scene)
        await asyncio.sleep(20)
        assert scene.below()["metadata"]["uid"] == second, "it waits for room on any node"
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(20)
        assert scene.above()["status"]["phase"] == "Failed", (
            "a lower pod that a user deletes is still reported"
        )


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_pod_that_gets_its_node_at_the_last_moment_stays():
    """The cache still shows the refusal. The upper pod gets its mark again."""
    async with running() as scene:
        _bind(scene)
        await asyncio.sleep(20)
        first = scene.below()["metadata"]["uid"]

        def schedule(verb: str, plural: str, _key: str) -> None:
            if (verb, plural) == ("delete", "pods"):
                scene.lower.change(
                    "pods", KEY, spec={"nodeName": "n7"}, status={"conditions": [_condition("True", "")]}
                )

        scene.lower.fault = schedule
        _refuse(scene)
        await asyncio.sleep(60)
        assert scene.below()["metadata"]["uid"] == first
        assert first in scene.above()["metadata"]["annotations"][names.ANNOTATION_LOWER_UID]


@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize("kept", ["before the deletion", "after the deletion"])
async def test_process_ends_while_a_node_is_given_up(kept):
    """The next process replaces the lower pod, and reports no lost pod."""
    upper, lower = clusters()
    scene = Scene(upper, lower)

    def fail(verb: str, plural: str, _key: str) -> None:
        if (verb, plural) == ("delete", "pods") and kept == "before the deletion":
            raise ConnectionFailed("the process is being killed")
        if (verb, plural) == ("create", "pods"):
            raise ConnectionFailed("the process is being killed")

    async with mirroring(scene):
        _bind(scene)
        await asyncio.sleep(20)
        first = scene.below()["metadata"]["uid"]
        lower.fault = fail
        _refuse(scene)
        await asyncio.sleep(5)
    lower.fault = lambda *_: None
    assert scene.is_below() is (kept == "before the deletion")
    async with mirroring(Scene(upper, lower)):
        await asyncio.sleep(60)
        assert scene.below()["metadata"]["uid"] != first
        assert REQUIRED not in _node_affinity(scene)
        assert scene.above()["status"]["phase"] == "Pending"


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_policy_forbids_a_choice_by_name():
    """Then the node is neither required nor preferred."""
    async with running(policy=Policy(node_selector_keys=["disk"])) as scene:
        _bind(scene)
        await asyncio.sleep(1)
        assert _node_affinity(scene) == {}
