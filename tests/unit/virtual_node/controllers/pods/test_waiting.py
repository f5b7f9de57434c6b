"""Events about what pods wait for: after a grace period, once for each cause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime.errors import Forbidden, Unavailable
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    Scene,
    clusters,
    lower_pod,
    mirroring,
    running,
)

pytestmark = pytest.mark.looptime
PAST = "2020-01-01T00:00:00Z"


def of(scene: Scene, reason: str) -> list[str]:
    """Return the messages of events with a reason."""
    return [message for found, message in scene.events if found == reason]


def older(**metadata: Any) -> dict[str, Any]:
    """Return the lower pod of an upper pod web that is gone, and that is being deleted."""
    body = lower_pod("u-old")
    body["metadata"] |= {"deletionTimestamp": PAST, "deletionGracePeriodSeconds": 0, **metadata}
    return body


async def test_name_of_an_older_pod_is_waited_for_with_an_event():
    """It has a finalizer. The pod starts when it is gone, and its status has no more of the wait."""
    upper, lower = clusters()
    lower.put("pods", older(finalizers=["example.com/x"]))
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind(uid="u-new")
        await asyncio.sleep(8)
        assert not of(scene, "WaitingForPredecessor")
        await asyncio.sleep(300)
        (message,) = of(scene, "WaitingForPredecessor")
        assert "example.com/x" in message
        waiting = scene.above()["status"]["containerStatuses"][0]["state"]["waiting"]
        assert waiting["reason"] == "WaitingForPredecessor"
        lower.remove("pods", "shop/web")
        await asyncio.sleep(2)
        assert scene.below()["metadata"]["labels"]["virtual-node.io/upper-uid"] == "u-new"


async def test_normal_replacement_has_no_event():
    """The older pod ends within seconds."""
    upper, lower = clusters()
    lower.put("pods", older())
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind(uid="u-new")
        await asyncio.sleep(3)
        lower.remove("pods", "shop/web")
        await asyncio.sleep(20)
        assert scene.events == []


@pytest.mark.parametrize(
    ("spec", "reason", "named"),
    [
        (
            {"nodeName": "", "schedulingGates": [{"name": "example.com/hold"}]},
            "SchedulingGated",
            "example.com/hold",
        ),
        ({"nodeName": "", "schedulerName": "mine"}, "NoScheduler", "mine"),
    ],
)
async def test_pod_that_does_not_start_has_one_event(spec, reason, named):
    """Also after hours."""
    upper, lower = clusters()
    body = lower_pod("u-1")
    body["spec"] |= spec
    lower.put("pods", body)
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        await asyncio.sleep(5)
        assert not of(scene, reason)
        await asyncio.sleep(7200)
        (message,) = of(scene, reason)
        assert named in message


async def test_deleted_pod_that_is_held_has_an_event():
    """The upper pod stays Terminating."""
    upper, lower = clusters()
    body = lower_pod("u-1")
    body["metadata"] |= {"finalizers": ["example.com/x"], "deletionTimestamp": PAST}
    body["status"]["phase"] = "Succeeded"
    lower.put("pods", body)
    async with mirroring(Scene(upper, lower)) as scene:
        above = scene.bind()
        upper.put(
            "pods",
            {
                **above,
                "metadata": {**above["metadata"], "deletionTimestamp": PAST, "deletionGracePeriodSeconds": 1},
            },
        )
        await asyncio.sleep(200)
        (message,) = of(scene, "LowerFinalizer")
        assert "example.com/x" in message


async def test_server_error_that_lasts_has_an_event():
    """A webhook of the lower cluster with failurePolicy Fail does not answer; the pod was tried again without a word."""
    async with running() as scene:
        message = 'Internal error occurred: failed calling webhook "w.example.com": connection refused'
        error = Unavailable(message, code=500, reason="InternalError")
        scene.lower.fault = lambda verb, plural, _key: error if (verb, plural) == ("create", "pods") else None
        scene.bind()
        await asyncio.sleep(5)
        assert scene.events == []
        await asyncio.sleep(120)
        (text,) = of(scene, "FailedCreate")
        assert "Webhook w.example.com of the lower cluster does not answer" in text


async def test_refused_deletion_has_one_event():
    """A webhook of the lower cluster denies it; the upper pod stays Terminating."""
    async with running() as scene:
        above = scene.bind()
        await asyncio.sleep(2)
        error = Forbidden('admission webhook "w.example.com" denied the request: keep it', code=403)
        scene.lower.fault = lambda verb, plural, _key: error if (verb, plural) == ("delete", "pods") else None
        metadata = {**scene.above()["metadata"], "deletionTimestamp": PAST, "deletionGracePeriodSeconds": 1}
        scene.upper.put("pods", {**above, "metadata": metadata})
        await asyncio.sleep(600)
        (message,) = of(scene, "LowerDeletionRefused")
        assert "Admission rule w.example.com of the lower cluster" in message


async def test_copies_that_cannot_be_read_have_an_event():
    """The log had a line, the pod nothing."""
    async with running() as scene:

        async def unreadable(*_what: Any) -> None:
            raise Unavailable("claims of the upper cluster cannot be read yet")

        scene.pods.creator.follow.ready = unreadable  # type: ignore[method-assign,assignment]
        scene.bind()
        await asyncio.sleep(20)
        assert scene.events == []
        await asyncio.sleep(600)
        (message,) = of(scene, "WaitingForCopies")
        assert "claims of the upper cluster cannot be read yet" in message


@pytest.mark.parametrize("refused", ["", "configmaps", "pods"])
async def test_pod_waits_for_the_end_of_a_terminating_lower_namespace(refused: str):
    """Its upper namespace was deleted and created again at once. A wait is not a refusal, and a short wait has no event.

    The API server refuses a creation if the namespace began to terminate after it was read.
    """
    upper, lower = clusters()
    namespace = lower.the("namespaces", "shop")
    if not refused:
        ending = {**namespace["metadata"], "deletionTimestamp": PAST}
        lower.put("namespaces", {**namespace, "metadata": ending})
    message = f"{refused} is forbidden: unable to create new content in namespace shop"
    cause = {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}
    error = Forbidden(message, code=403, reason="Forbidden", status=cause)
    refused_now = {("create", refused): error}
    lower.fault = lambda verb, plural, _key: refused_now.get((verb, plural))
    async with mirroring(Scene(upper, lower)) as scene:
        upper.put(
            "configmaps", {"metadata": {"name": "settings", "namespace": "shop", "uid": "u-2"}, "data": {}}
        )
        scene.bind(volumes=[{"name": "a", "configMap": {"name": "settings"}}])
        await asyncio.sleep(20)
        assert scene.events == []
        assert not scene.above().get("status", {}).get("conditions")
        await asyncio.sleep(60)
        (message,) = of(scene, "WaitingForCopies")
        assert "namespace shop" in message
        assert len(scene.events) == 1
        # It may never end, so the descheduler may move the pod (failures: admission).
        admitted = condition(scene.above()["status"], names.CONDITION_ADMITTED)
        assert (admitted["status"], admitted["reason"]) == ("False", "NamespaceTerminating")
        refused_now.clear()
        if not refused:
            lower.remove("namespaces", "shop")
        await asyncio.sleep(90)
        assert scene.below()["metadata"]["labels"]["virtual-node.io/upper-uid"] == "u-1"
        assert not condition(scene.above()["status"], names.CONDITION_ADMITTED)
