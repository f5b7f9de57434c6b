"""The memory of the Swarms, workers and reports of one namespace is limited."""

from __future__ import annotations

from functools import partial

import pytest

from controller_runtime.objects import from_dict
from controller_runtime.store import is_stub
from swarm.controller import caches
from swarm.controller.delivery import (
    INDEX_SWARM,
    LABEL_SWARM,
    by_swarm,
    owned_stub,
    shrink_config_map,
    shrink_metadata,
)
from swarm.spec import FINALIZER
from tests.unit.swarm.controller.scene import NAMESPACE, Scene, so

_LARGE = "x" * 100_000


def _reason(scene: Scene, name: str) -> str:
    return scene.condition(name)[0]


def _jobs(count: int) -> list[dict[str, str]]:
    return [{"name": f"{number:0100}"} for number in range(count)]


async def test_a_swarm_beyond_its_namespaces_limit_is_refused_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
):
    """The others go on, and the refused one can be deleted."""
    monkeypatch.setattr(caches, "SWARM_BYTES", 20_000)
    monkeypatch.setattr("controller_runtime.cache.informer._AGAIN", 0.05)
    scene = Scene()
    scene.pod()
    scene.swarm("a", jobs=_jobs(3))
    async with scene.running():
        await so(lambda: scene.condition("a", "Assigned")[0], "AllAssigned")
        for name in "bc":
            scene.swarm(name, jobs=_jobs(200))
            await so(partial(_reason, scene, name), "TooManySwarms")
        assert "divide them over namespaces" in scene.condition("b")[1]
        scene.server.change("swarms", f"{NAMESPACE}/a", spec={"maxPerWorker": 2})
        await so(lambda: scene.condition("a", "Assigned")[0], "MaxPerWorkerReached")
        scene.server.change("swarms", f"{NAMESPACE}/c", spec={"jobs": _jobs(2)})
        await so(lambda: scene.condition("c", "Assigned")[0], "AllAssigned")
        scene.server.change("swarms", f"{NAMESPACE}/b", metadata={"finalizers": [FINALIZER]})
        scene.server.delete("swarms", f"{NAMESPACE}/b")
        await so(lambda: scene.find("swarms", "b"), None)
    assert len(scene.events("TooManySwarms")) == 2


def test_a_pod_is_cached_without_what_is_not_read():
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1", "labels": {"app": "a"},
            "annotations": {"x": _LARGE}, "ownerReferences": [{"uid": "s", "controller": True}, {"uid": _LARGE}]},
        "spec": {"nodeName": "node", "containers": [{"name": _LARGE}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "message": _LARGE},
    }  # fmt: skip
    shrunk = caches.shrink_pod(from_dict(pod))
    assert shrunk.memory < 2000
    assert caches.view(shrunk) == caches.view(from_dict(pod))
    stub = caches.pod_stub(shrunk)
    assert is_stub(stub)
    assert (caches.view(stub).labels, caches.view(stub).node, stub.metadata.owner_references) == (
        {},
        "node",
        [],
    )


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
def test_a_workload_is_cached_in_a_few_kilobytes(kind: str):
    """Its user can write a selector of a megabyte; the number of replicas is kept."""
    spec = {"replicas": 3, "selector": {"matchLabels": {"x": _LARGE}}, "template": {"x": _LARGE}}
    metadata = {
        "name": "w",
        "namespace": "n",
        "uid": "u",
        "labels": {"x": _LARGE},
        "annotations": {"x": _LARGE},
    }
    shrunk = caches.shrink_workload(from_dict({"kind": kind, "metadata": metadata, "spec": spec}))
    assert (shrunk.memory < 2000, shrunk.spec) == (True, {"replicas": 3})


@pytest.mark.parametrize("shrink", [shrink_config_map, shrink_metadata])
def test_an_object_with_the_label_of_a_swarm_is_cached_in_a_few_kilobytes(shrink):
    """Any user of the namespace can set it."""
    metadata = {"name": "s.w-0", "namespace": "n", "uid": "u", "labels": {LABEL_SWARM: "s", "x": _LARGE},
        "annotations": {"x": _LARGE}, "ownerReferences": [{"kind": "Pod", "uid": _LARGE}]}  # fmt: skip
    shrunk = shrink(from_dict({"metadata": metadata, "data": {"share.json": _LARGE}} if shrink is shrink_config_map
        else {"metadata": metadata}))  # fmt: skip
    assert shrunk.memory < 2000
    assert list(by_swarm(shrunk)) == list(by_swarm(owned_stub(shrunk))) == ["n/s"]


async def test_a_lease_beyond_the_limit_is_no_report_and_not_overwritten(monkeypatch: pytest.MonkeyPatch):
    """Another user of the namespace has filled it; the Swarm's event says so."""
    monkeypatch.setattr(caches, "_BYTES", 5_000)
    scene = Scene()
    scene.pod()
    metadata = {"name": "s.w-0", "labels": {LABEL_SWARM: "s"}}
    mark = {"swarm.virtual-node.io/acknowledged": "x" * 10_000}
    scene.server.create("leases", {"metadata": {**metadata, "annotations": mark}}, namespace=NAMESPACE)
    scene.swarm(jobs=_jobs(1))
    async with scene.following() as cached, scene.running(cached):
        await so(lambda: bool(scene.events("NotWritten")), True)
        assert len(cached.leases.store.by_index(INDEX_SWARM, f"{NAMESPACE}/s")) >= 1
    assert "are too large for the controller's memory" in scene.events("NotWritten")[0]
    lease = scene.find("leases", "s.w-0")
    assert lease is not None
    assert lease["metadata"]["annotations"] == mark
