"""A lower cluster that drops fields of a pod: the pod runs without them, or does not run at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.errors import ConnectionFailed
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, Scene, running

EVENT = "FieldsLost"


def drop(scene: Scene, *fields: str) -> list[str]:
    """Let the lower cluster drop these fields of new pods; return the names of the pods that it creates."""
    created: list[str] = []

    def dropping(plural: str, body: Body) -> None:
        if plural == "pods":
            created.append(body["metadata"]["name"])
            for field in fields:
                body["spec"].pop(field, None)

    scene.lower.server.drop_unknown = dropping
    return created


def admitted(scene: Scene, name: str = "web") -> dict[str, Any]:
    """Return the condition that says why the lower cluster does not take the pod; empty: there is none."""
    conditions: list[dict[str, Any]] = scene.above(name)["status"].get("conditions") or []
    return next((one for one in conditions if one["type"] == "virtual-node.io/Admitted"), {})


def is_deleted(scene: Scene) -> bool:
    """Report whether the lower pod is gone or being deleted."""
    found = scene.lower.find("pods", KEY)
    return found is None or "deletionTimestamp" in found["metadata"]


@pytest.mark.looptime
async def test_a_pod_runs_without_a_field_that_it_does_not_need() -> None:
    """One event names the field."""
    async with running() as scene:
        drop(scene, "hostnameOverride")
        scene.bind(hostnameOverride="h")
        await asyncio.sleep(5)
        assert scene.is_below()
        assert [message for reason, message in scene.events if reason == EVENT] == [
            (
                "Lower cluster lower1 has dropped fields of the pod, and runs it without them: spec.hostnameOverride. Its "
                "version of Kubernetes does not know them, their feature is off there, or its admission removes them"
            )
        ]
        assert not admitted(scene)


@pytest.mark.looptime
async def test_a_pod_does_not_run_without_a_field_that_it_needs() -> None:
    """Its lower pod is deleted before a kubelet starts it, and the upper pod is not lost."""
    async with running() as scene:
        created = drop(scene, "hostUsers")
        scene.bind(hostUsers=False)
        await asyncio.sleep(5)
        assert is_deleted(scene)
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(5)
        assert created == ["web"]
        assert scene.above()["status"]["phase"] == "Pending"
        assert admitted(scene)["reason"] == EVENT
        assert "spec.hostUsers" in admitted(scene)["message"]
        assert [reason for reason, _ in scene.events] == [EVENT]


@pytest.mark.looptime
async def test_further_pods_are_refused_without_a_request() -> None:
    """Others run, and the lower cluster is asked again after ten minutes."""
    async with running() as scene:
        created = drop(scene, "hostUsers")
        scene.bind(hostUsers=False)
        await asyncio.sleep(5)
        scene.lower.remove("pods", KEY)
        scene.bind("other", uid="u-2", hostUsers=False)
        scene.bind("plain", uid="u-3")
        await asyncio.sleep(500)
        assert created == ["web", "plain"]
        assert admitted(scene, "other")["message"] == admitted(scene)["message"]
        drop(scene)  # the lower cluster is upgraded
        await asyncio.sleep(200)
        assert scene.below()["spec"]["hostUsers"] is False
        assert scene.is_below("other")


@pytest.mark.looptime
async def test_a_failed_deletion_is_repeated() -> None:
    """A pod without a field that it needs is not followed."""
    async with running() as scene:
        drop(scene, "hostUsers")
        failures = [ConnectionFailed("reset")]
        scene.lower.fault = lambda verb, plural, _key: (
            failures.pop() if (verb, plural) == ("delete", "pods") and failures else None
        )
        scene.bind(hostUsers=False)
        await asyncio.sleep(10)
        assert not failures
        assert is_deleted(scene)
        assert admitted(scene)["reason"] == EVENT


@pytest.mark.looptime
async def test_a_pod_whose_creation_got_no_response_is_compared_when_it_is_seen() -> None:
    """The connection may break after the lower cluster has created the pod."""
    async with running() as scene:
        drop(scene, "hostUsers")
        send = scene.lower.send
        lost: list[Any] = []

        async def losing(verb: str, plural: str, *arguments: Any, **options: Any) -> Any:
            answer = await send(verb, plural, *arguments, **options)
            if (verb, plural) == ("create", "pods") and not lost:
                lost.append(answer)
                raise ConnectionFailed("reset")
            return answer

        scene.lower.send = losing  # type: ignore[method-assign]
        scene.bind(hostUsers=False)
        await asyncio.sleep(10)
        assert lost
        assert is_deleted(scene)
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(10)
        assert scene.above()["status"]["phase"] == "Pending"
        assert admitted(scene)["reason"] == EVENT
