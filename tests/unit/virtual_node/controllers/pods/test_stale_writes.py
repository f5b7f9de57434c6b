"""A write based on an earlier state of a pod changes nothing: a killed process' requests may arrive late."""

from __future__ import annotations

import asyncio
import json

import pytest

from clusterset.model import names
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, running

pytestmark = pytest.mark.looptime


async def test_a_failed_pod_is_not_shown_as_running_by_a_former_leader():
    """Its cache is stale: its successor has reported the pod Failed, and the lower kubelet Running."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.upper.held.add("pods")
        failed = scene.upper.change("pods", KEY, status={"phase": "Failed", "reason": "LowerPodDeleted"})
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(10)
        assert scene.above()["status"] == failed["status"]
        assert "pods/status" in {plural for verb, plural, _ in scene.upper.calls if verb == "patch"}


async def test_a_changed_lower_pod_is_read_again_before_it_is_patched():
    """Otherwise the record of the requested images would contradict the pod, and the next change might be lost."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.held.add("pods")
        scene.lower.change("pods", KEY, metadata={"labels": {"by": "a successor"}})
        note = scene.below()["metadata"]["annotations"][names.ANNOTATION_APPLIED]
        scene.upper.change("pods", KEY, spec={"containers": [{"name": "main", "image": "web:2"}]})
        await asyncio.sleep(10)
        below = scene.below()
        assert (below["metadata"]["annotations"][names.ANNOTATION_APPLIED], below["spec"]["containers"][0]) == (
            note, {"name": "main", "image": "web:1"},
        )  # fmt: skip
        scene.lower.release("pods")
        await asyncio.sleep(90)
        below = scene.below()
        assert below["spec"]["containers"][0]["image"] == "web:2"
        after = json.loads(below["metadata"]["annotations"][names.ANNOTATION_APPLIED])
        assert after["spec"] != json.loads(note)["spec"]
