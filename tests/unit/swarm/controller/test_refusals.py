"""What the API server refuses, and Swarms that wait."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model.names import SWARMS
from controller_runtime.errors import ApiError, Invalid, Unavailable
from swarm import planning
from swarm.handover import Slot
from swarm.spec import FINALIZER
from tests.unit.swarm.controller.scene import NAMESPACE, Scene, so


@pytest.mark.parametrize(
    ("plural", "error"),
    [
        ("configmaps", Invalid('ConfigMap "s.w-0" is invalid: metadata.name: too long', code=422)),
        ("leases", Invalid('Lease "s.w-0" is invalid: metadata.name: too long', code=422)),
        (f"{SWARMS.plural}/status", Unavailable("etcdserver: request is too large", code=500)),
    ],
)
async def test_a_refused_object_is_an_event(plural: str, error: ApiError):
    """Without it the Swarm would not progress, and its user would not know why."""
    scene = Scene()
    scene.client.fault = lambda verb, asked, _: (
        error if asked == plural and verb in {"create", "update"} else None
    )
    scene.pod()
    scene.swarm(jobs=[{"name": "a"}])
    async with scene.running():
        await so(
            lambda: any(str(error).partition(":")[0] in text for text in scene.events("NotWritten")), True
        )


_NO_VALUES = {"matchExpressions": [{"key": "app", "operator": "In"}]}
"""A selector that the schema accepts."""


@pytest.mark.parametrize(
    "spec",
    [
        {"workers": {"selector": _NO_VALUES}},
        {"workers": {"selector": {}}, "jobsFrom": {"selector": _NO_VALUES}},
        {"workers": {"selector": {}}, "jobs": [{"name": "a", "affinity": {"workers": _NO_VALUES}}]},
    ],
    ids=["workers", "jobsFrom", "affinity"],
)
async def test_a_swarm_with_an_invalid_specification_can_be_deleted(spec: dict[str, Any]):
    """Its finalizer waits only for workers that may run its jobs."""
    scene = Scene()
    scene.pod()
    scene.swarm(**spec)
    async with scene.running():
        await so(lambda: scene.condition()[0], "InvalidSpec")
        await scene.client.delete(SWARMS, "s", namespace=NAMESPACE)
        await so(lambda: scene.find("swarms", "s"), None)


async def test_the_status_observes_every_generation_of_an_invalid_specification():
    """Tools that wait for a change, such as Argo CD, regard an older generation as in progress."""
    scene = Scene()
    scene.swarm(workers={"selector": _NO_VALUES})
    async with scene.running():
        await so(lambda: scene.condition()[0], "InvalidSpec")
        changed = {"workers": {"selector": _NO_VALUES}, "maxPerWorker": 3}
        scene.server.change("swarms", f"{NAMESPACE}/s", spec=changed, metadata={"generation": 7})
        await so(lambda: scene.status().get("observedGeneration"), 7)
    assert len(scene.events("InvalidSpec")) == 1


async def test_a_deleted_swarm_waits_for_its_jobs_if_nobody_knows_its_workers():
    """Its user corrects the selector, or confirms that the pods are gone."""
    scene = Scene()
    uid = scene.pod()["metadata"]["uid"]
    scene.swarm(jobs=[{"name": "a"}])
    async with scene.running():
        await so(lambda: scene.find("leases", "s.w-0") is not None, True)
        scene.acknowledge("s.w-0", uid)
        await so(lambda: scene.status().get("assignedCount"), 1)
        scene.server.change("swarms", f"{NAMESPACE}/s", spec={"workers": {"selector": _NO_VALUES}})
        await so(lambda: scene.condition()[0], "InvalidSpec")
        await scene.client.delete(SWARMS, "s", namespace=NAMESPACE)
        deleted = scene.find("swarms", "s")
        assert deleted is not None
        assert FINALIZER in deleted["metadata"]["finalizers"]
        valid = {"workers": {"selector": {}}, "jobs": [{"name": "a", "affinity": {"workers": _NO_VALUES}}]}
        scene.server.change("swarms", f"{NAMESPACE}/s", spec=valid)
        scene.acknowledge("s.w-0", uid, version=9)
        await so(lambda: scene.find("swarms", "s"), None)


def test_slots_that_wait_for_any_ready_pod_cause_no_reconciles():
    """They stay after the grace period, and an event reports a ready pod."""
    workers = planning.Workers(planning.STATEFUL_SET, 2, grace=10)
    found = {
        name: Slot(name=name, index=0, unready_since=since) for name, since in (("a", 100.0), ("b", 95.0))
    }
    assert planning.next_expiry(found, workers, now=103) == 2
    assert planning.next_expiry(found, workers, now=106) == 4
    assert planning.next_expiry(found, workers, now=200) is None
