"""Pods whose translation exceeds its budget are refused once, and again only after a change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.errors import RequestTooLarge
from tests import objects
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, Scene, pod, running
from virtual_node.translate.pods import lower_pod

pytestmark = pytest.mark.looptime

NAME = "s" * 63
MINE = f"{names.DOMAIN}/mine"


def service(ports: int) -> Body:
    """Return a Service with a long name, so that each port means many bytes of variables."""
    return objects.service(NAME, [{"port": number} for number in range(1, ports + 1)])


def containers(count: int, **more: Any) -> list[Body]:
    """Return containers."""
    return [{"name": f"c{number}", "image": "web:1", **more} for number in range(count)]


def referring(count: int) -> list[Body]:
    """Return a container with variables for one annotation that is not copied."""
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{MINE}']"}}
    return containers(1, env=[{"name": f"V{number}", "valueFrom": source} for number in range(count)])


def reasons(scene: Scene) -> list[str]:
    """Return the reasons of all events."""
    return [reason for reason, _ in scene.events]


@pytest.fixture
def translations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each pod that is translated."""
    names_of: list[str] = []
    translate = lower_pod.lower_pod

    def counted(upper: Any, *rest: Any, **more: Any) -> Any:
        names_of.append(upper["metadata"]["name"])
        return translate(upper, *rest, **more)

    monkeypatch.setattr(lower_pod, "lower_pod", counted)
    return names_of


async def test_a_pod_with_too_many_service_variables_waits_until_a_service_shrinks(translations):
    async with running() as scene:
        scene.upper.put("services", service(500))
        scene.bind(containers=containers(30))
        await asyncio.sleep(30)
        assert not scene.is_below()
        status = scene.above()["status"]
        (admitted,) = (one for one in status["conditions"] if one["type"] == names.CONDITION_ADMITTED)
        assert admitted["reason"] == "TooLarge"
        assert "set enableServiceLinks: false" in admitted["message"]
        assert reasons(scene) == ["FailedCreate"]
        translated = len(translations)
        assert translated <= 2
        await asyncio.sleep(3600)
        assert len(translations) == translated
        assert reasons(scene) == ["FailedCreate"]
        scene.upper.put("services", service(1))
        await asyncio.sleep(70)
        assert scene.is_below()


async def test_a_change_of_the_pod_is_tried_at_once(translations):
    """A change that is not translated, such as the status, is not."""
    async with running() as scene:
        large = pod("web", uid="u-1", nodeName="vn", containers=referring(40))
        large["metadata"]["annotations"] = {MINE: "x" * 100_000}
        scene.upper.put("pods", large)
        await asyncio.sleep(30)
        assert reasons(scene) == ["FailedCreate"]
        translated = len(translations)
        scene.upper.change("pods", KEY, status={"message": "another"})
        await asyncio.sleep(30)
        assert len(translations) == translated
        scene.upper.change("pods", KEY, metadata={"annotations": {MINE: "x"}})
        await asyncio.sleep(5)
        assert scene.below()["spec"]["containers"][0]["env"][0]["value"] == "x"


async def test_a_pod_that_the_lower_server_finds_too_large_is_not_sent_again():
    async with running() as scene:
        error = RequestTooLarge("too large", code=413)
        scene.lower.fault = lambda verb, plural, _key: error if (verb, plural) == ("create", "pods") else None
        scene.bind()
        await asyncio.sleep(30)
        assert reasons(scene) == ["FailedCreate"]
        scene.lower.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(3600)
        assert not scene.is_below()
        scene.upper.change("pods", KEY, metadata={"labels": {"new": "label"}})
        await asyncio.sleep(5)
        assert scene.is_below()


async def test_an_update_that_is_too_large_is_refused_and_the_pod_runs_on():
    async with running() as scene:
        scene.bind(containers=referring(40))
        await asyncio.sleep(10)
        scene.upper.change("pods", KEY, metadata={"annotations": {MINE: "x" * 100_000}})
        await asyncio.sleep(10)
        assert reasons(scene) == ["UpdateRefused"]
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(3600)
        assert scene.above()["status"]["phase"] == "Running"
        assert reasons(scene) == ["UpdateRefused"]
        scene.upper.change("pods", KEY, metadata={"annotations": {MINE: "x"}, "labels": {"new": "label"}})
        await asyncio.sleep(10)
        assert scene.below()["metadata"]["labels"]["new"] == "label"


async def test_debug_containers_that_are_too_large_do_not_block_other_changes():
    async with running() as scene:
        scene.bind(containers=containers(1))
        await asyncio.sleep(10)
        scene.upper.put("services", service(9000))
        await asyncio.sleep(1)
        scene.upper.change(
            "pods", KEY, metadata={"labels": {"new": "label"}}, spec={"ephemeralContainers": containers(1)}
        )
        await asyncio.sleep(60)
        assert reasons(scene) == ["UpdateRefused"]
        assert "ephemeralContainers" not in scene.below()["spec"]
        assert scene.below()["metadata"]["labels"]["new"] == "label"


async def test_debug_containers_that_do_not_fit_together_follow_one_after_the_other():
    async with running() as scene:
        scene.bind(containers=containers(1))
        await asyncio.sleep(10)
        scene.upper.put("services", service(500))
        await asyncio.sleep(1)
        scene.upper.change("pods", KEY, spec={"ephemeralContainers": containers(30)})
        await asyncio.sleep(60)
        assert len(scene.below()["spec"]["ephemeralContainers"]) == 30


async def test_a_refused_pod_with_thousands_of_containers_gets_a_small_status():
    """Each container's status would repeat the message."""
    async with running() as scene:
        large = pod("web", uid="u-1", nodeName="vn", containers=[*referring(40), *containers(1500)[1:]])
        large["metadata"]["annotations"] = {MINE: "x" * 100_000}
        scene.upper.put("pods", large)
        await asyncio.sleep(30)
        assert reasons(scene) == ["FailedCreate"]
        assert "containerStatuses" not in scene.above()["status"]
