"""Drains of virtual nodes on a fake cluster in virtual time: nothing is lost, and no Ready pod too few at any write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.errors import BadRequest
from tests.unit.descheduler.bodies import pod
from tests.unit.descheduler.draining import (
    REPLICAS,
    drain_process,
    drain_status,
    draining_cluster,
    is_clean,
    places,
)
from tests.unit.descheduler.replica_sets import ReplicaSets, is_ready

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("wave", [1, 20])
async def test_replacements_are_ready_before_pods_leave(wave):
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS)
    process = drain_process(cluster, wave=wave)
    async with owner.running(), process.running():
        await asyncio.sleep(120)
    assert owner.fewest == REPLICAS
    assert places(cluster) == "bbbb"
    assert is_clean(cluster)
    status = drain_status(cluster)
    assert status is not None
    assert (status.moved, status.is_complete) == (REPLICAS, True)
    assert process.reasons().count("Rescheduled") == REPLICAS
    assert process.reasons()[-1] == "Drained"


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(14))
async def test_next_process_completes_drain_after_crash_at_any_write(number, is_done):
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2)
    first = drain_process(cluster)
    async with owner.running():
        await first.run_until(lambda _what: len(first.client.writes) == number + is_done, is_done=is_done)
        await asyncio.sleep(5)
        async with drain_process(cluster).running():
            await asyncio.sleep(120)
    assert owner.fewest == 2
    assert places(cluster) == "bb"
    assert is_clean(cluster)


async def test_webhook_without_dry_run_does_not_keep_pods(monkeypatch):
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2)
    evict = cluster.evict

    def refuse(key: str, body: Any, *, who: str = "", dry_run: bool = False) -> Any:
        if dry_run:
            raise BadRequest("admission webhook x does not support dry run", code=400)
        return evict(key, body, who=who)

    monkeypatch.setattr(cluster, "evict", refuse)
    async with owner.running(), drain_process(cluster).running():
        await asyncio.sleep(60)
    assert (owner.fewest, places(cluster)) == (2, "bb")


async def test_pod_of_several_budgets_stays():
    """API servers never evict it, so it is not released."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2)
    for name in ("one", "two"):
        cluster.put(
            "poddisruptionbudgets",
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": "web"}}},
                "status": {"disruptionsAllowed": 1},
            },
        )
    process = drain_process(cluster)
    async with owner.running(), process.running():
        await asyncio.sleep(60)
    status = drain_status(cluster)
    assert status is not None
    assert (status.staying, status.is_over) == (2, True)
    assert "more than one PodDisruptionBudget" in status.pods[0].why
    assert "patch pods" not in process.client.writes


async def test_replica_set_without_deployment_moves_one_pod_at_a_time():
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2)
    cluster.remove("deployments", "default/web")
    async with owner.running(), drain_process(cluster).running():
        await asyncio.sleep(60)
    assert (owner.fewest, places(cluster)) == (1, "bb")
    assert len(cluster.created) == 4


async def test_each_pod_that_cannot_move_is_listed_with_its_reason():
    cluster = draining_cluster()
    volumes = {"volumes": [{"name": "v", "emptyDir": {}}]}
    only_a = {"nodeSelector": {"kubernetes.io/hostname": "a"}}
    cluster.put("pods", pod("cache", phase="Running", refused_at=None, spec=volumes))
    cluster.put("pods", pod("tied", phase="Running", refused_at=None, spec=only_a))
    cluster.put("pods", pod("agent", owner="ds", kind="DaemonSet", phase="Running", refused_at=None))
    cluster.put("pods", pod("bare", phase="Running", refused_at=None))
    async with drain_process(cluster).running():
        await asyncio.sleep(60)
    status = drain_status(cluster)
    assert status is not None
    assert {one.pod: (one.state, one.why) for one in status.pods} == {
        "default/cache": (
            "stays",
            "it has local storage (allow it: drain --delete-emptydir-data, or --evict-local-storage-pods of the descheduler)",
        ),
        "default/tied": ("stays", "no other ready virtual node admits it"),
    }
    assert (status.moved, status.is_over, status.is_complete) == (1, True, False)


async def test_stateful_set_moves_one_pod_at_a_time():
    cluster = draining_cluster()
    owner = {"kind": "StatefulSet", "name": "db", "uid": "db", "controller": True}
    cluster.put(
        "statefulsets",
        {
            "metadata": {"name": "db", "namespace": "default", "uid": "db"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "db"}}},
        },
    )

    def put(number: int, on: str) -> None:
        body = pod(f"db-{number}", on=on, phase="Running", refused_at=None, labels={"app": "db"})
        body["metadata"]["ownerReferences"] = [owner]
        body["status"]["conditions"].append({"type": "Ready", "status": "True"})
        cluster.put("pods", body)

    fewest = 3
    for number in range(3):
        put(number, "a")

    async def controller() -> None:
        nonlocal fewest
        while True:
            await asyncio.sleep(0.1)
            ready = [
                found
                for found in cluster.all("pods")
                if is_ready(found) and "deletionTimestamp" not in found["metadata"]
            ]
            fewest = min(fewest, len(ready))
            for number in range(3):
                if cluster.find("pods", f"default/db-{number}") is None:
                    await asyncio.sleep(3)
                    put(number, "b")

    task = asyncio.create_task(controller())
    async with drain_process(cluster).running():
        await asyncio.sleep(120)
    task.cancel()
    assert (fewest, places(cluster)) == (2, "bbb")


async def test_names_the_replacement_that_a_scheduler_refuses():
    """With the reason, also after the move was undone, so that the user need not search for the new pod."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2, ready_after=None)
    owner.is_refused = True
    async with owner.running(), drain_process(cluster).running():
        await asyncio.sleep(10)
        status = drain_status(cluster)
        assert status is not None
        assert {state.why for state in status.pods if state.state == "moving"} == {
            "its replacement is not Ready yet; default/web-3 waits: Unschedulable: 0/3 nodes are available"
        }
        await asyncio.sleep(60)
        status = drain_status(cluster)
    assert status is not None
    assert (
        "not Ready in time: default/web-3 waits: Unschedulable: 0/3 nodes are available" in status.pods[0].why
    )
    assert status.is_over


async def test_names_the_pod_of_a_stateful_set_that_the_next_one_waits_for():
    cluster = draining_cluster()
    owner = {"kind": "StatefulSet", "name": "db", "uid": "db", "controller": True}
    metadata = {"name": "db", "namespace": "default", "uid": "db"}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "db"}}}
    cluster.put("statefulsets", {"metadata": metadata, "spec": spec})
    more: dict[str, Any] = {"labels": {"app": "db"}, "ownerReferences": [owner]}
    cluster.put("pods", pod("db-0", on="b", **more))
    body = pod("db-1", phase="Running", refused_at=None, **more)
    body["status"]["conditions"].append({"type": "Ready", "status": "True"})
    cluster.put("pods", body)
    async with drain_process(cluster).running():
        await asyncio.sleep(10)
    status = drain_status(cluster)
    assert status is not None
    assert [(state.pod, state.state, state.why) for state in status.pods] == [
        (
            "default/db-1",
            "waiting",
            "1 of 2 pods of its StatefulSet are available; default/db-0 waits: Unschedulable: 0/3 nodes are available",
        )
    ]


async def test_stops_without_cordon_and_with_invalid_request():
    cluster = draining_cluster()
    cluster.put("pods", pod("bare", phase="Running", refused_at=None))
    cluster.change("nodes", "a", spec={"unschedulable": False})
    async with drain_process(cluster).running():
        await asyncio.sleep(5)
        status = drain_status(cluster)
        assert status is not None
        assert "kubectl cordon a" in status.stopped
        cluster.change(
            "nodes",
            "a",
            spec={"unschedulable": True},
            metadata={"annotations": {names.ANNOTATION_DRAIN: "{x"}},
        )
        await asyncio.sleep(5)
        status = drain_status(cluster)
        assert status is not None
        assert "is not valid" in status.stopped
        assert places(cluster) == "a"
