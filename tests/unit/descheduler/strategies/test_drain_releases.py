"""Released pods of a drain on a fake cluster: cancelled, without a record, of deleted owners, with slow requests."""

from __future__ import annotations

import asyncio
import json

import pytest

from clusterset.model import names
from controller_runtime.errors import ConnectionFailed, Forbidden, ServerTimeout
from tests.unit.descheduler.bodies import node, pod
from tests.unit.descheduler.draining import (
    REPLICAS,
    drain_process,
    draining_cluster,
    hashes,
    is_clean,
    places,
)
from tests.unit.descheduler.replica_sets import ReplicaSets

pytestmark = pytest.mark.looptime


async def test_released_pod_of_orphaning_owner_stays():
    """Its siblings stay, too: ``kubectl delete replicaset --cascade=orphan``."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2, ready_after=None)
    before = {found["metadata"]["uid"] for found in cluster.all("pods")}
    async with drain_process(cluster).running():
        async with owner.running():
            await asyncio.sleep(5)
        assert not is_clean(cluster)
        deleted = {"deletionTimestamp": "2026-01-01T00:00:05Z", "finalizers": ["orphan"]}
        cluster.change("replicasets", "default/web-h1", metadata=deleted)
        await asyncio.sleep(5)
        assert hashes(cluster) == {"h1"}
        assert before <= {found["metadata"]["uid"] for found in owner.active()}


async def test_cancelled_drain_restores_pods_that_wait():
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS, ready_after=20)
    async with owner.running(), drain_process(cluster).running():
        await asyncio.sleep(10)
        assert not is_clean(cluster)
        cluster.put("nodes", node("a"))
        await asyncio.sleep(60)
    assert owner.fewest == REPLICAS
    assert places(cluster) == "aaaa"
    assert is_clean(cluster)


async def test_a_cancelled_drain_withdraws_eviction_requests():
    """Otherwise the responders go on, and the pod is evicted although it should stay."""
    cluster = draining_cluster()
    body = pod("p0", owner="rs", phase="Running", refused_at=None)
    body["spec"]["evictionResponders"] = [{"name": "acme.example/mover", "priority": 10000}]
    cluster.put("pods", body)
    async with drain_process(cluster).running():
        await asyncio.sleep(10)
        assert len(cluster.all("evictionrequests")) == 1
        cluster.put("nodes", node("a"))
        await asyncio.sleep(5)
        assert cluster.all("evictionrequests") == []
        await asyncio.sleep(60)
    assert places(cluster) == "a"


async def test_a_repeated_drain_continues_the_moves_in_progress():
    """Restored pods would be released again at once, and their ReplicaSet would delete the replacements in between."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS, ready_after=20)
    process = drain_process(cluster)
    async with owner.running(), process.running():
        await asyncio.sleep(10)
        assert not is_clean(cluster)
        body = cluster.get("nodes", "a")
        again = {names.ANNOTATION_DRAIN: json.dumps({"podTimeoutSeconds": 30, "requestedAt": "later"})}
        cluster.replace("nodes", "a", metadata={**body["metadata"], "annotations": again})
        await asyncio.sleep(120)
    assert owner.fewest == REPLICAS
    assert places(cluster) == "bbbb"
    assert is_clean(cluster)
    assert "RescheduleRolledBack" not in process.reasons()
    assert process.reasons().count("Replacing") == REPLICAS


async def test_released_pods_stay_while_their_cluster_is_silent_and_replacements_are_not_ready():
    """Kubernetes marks them as not Ready, but they may run."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS, ready_after=20)
    async with owner.running(), drain_process(cluster).running():
        await asyncio.sleep(10)
        assert not is_clean(cluster)
        cluster.replace("nodes", "a", status=node("a", ready=False)["status"])
        for found in owner.active():
            unready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
            cluster.replace("pods", f"default/{found['metadata']['name']}", status=unready)
        await asyncio.sleep(8)
        assert places(cluster) == "aaaabb"
        assert len(owner.active()) == REPLICAS + 2


async def test_pods_of_deleted_owner_are_deleted():
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2, ready_after=None)
    async with owner.running(), drain_process(cluster).running():
        await asyncio.sleep(5)
        cluster.budget_denies = True  # it may outlive its Deployment
        cluster.remove("replicasets", "default/web-h1")
        for found in owner.active():
            if found["metadata"]["labels"]["pod-template-hash"] == "h1":  # the garbage collector
                cluster.remove("pods", f"default/{found['metadata']['name']}")
        await asyncio.sleep(10)
    assert cluster.all("pods") == []
    assert cluster.all("controllerrevisions") == []


async def test_marked_pod_without_record_is_restored_and_not_evicted():
    """A user can write the mark; it proves nothing."""
    cluster = draining_cluster(is_draining=False)
    labels = {"app": "web", "pod-template-hash": "h1-leaving"}
    body = pod(
        "p", phase="Running", refused_at=None, labels=labels, annotations={names.ANNOTATION_LEAVING: "h1"}
    )
    cluster.put("pods", body)
    process = drain_process(cluster)
    async with process.running():
        await asyncio.sleep(60)
    found = cluster.get("pods", "default/p")["metadata"]
    assert found["labels"]["pod-template-hash"] == "h1"
    assert not found.get("annotations")
    assert process.client.writes == ["patch pods"]


@pytest.mark.parametrize(
    ("mark", "label"), [("h1", None), ("h1", "other"), ("h-", "h--leaving"), ("x y", "x")]
)
async def test_mark_without_valid_label_has_no_effect(mark, label):
    """No label can be restored from it, so it would keep the pod on its node forever."""
    cluster = draining_cluster()
    labels = {"app": "web"} | ({"pod-template-hash": label} if label else {})
    marks = {names.ANNOTATION_LEAVING: mark}
    cluster.put("pods", pod("p", phase="Running", refused_at=None, labels=labels, annotations=marks))
    async with drain_process(cluster).running():
        await asyncio.sleep(60)
    assert all(found["spec"].get("nodeName") != "a" for found in cluster.all("pods"))


@pytest.mark.parametrize(
    "error", [ConnectionFailed("silent"), ServerTimeout("late", code=504), Forbidden("no", code=403)]
)
@pytest.mark.parametrize("is_applied", [False, True])
async def test_release_with_unknown_result_is_decided(error, is_applied):
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2)
    process = drain_process(cluster)
    failures = [error]

    async def fail(what: str) -> None:
        if what == "patch pods" and failures:
            raise failures.pop()

    if is_applied and not isinstance(error, Forbidden):
        process.client.after = fail
    else:
        process.client.before = fail
    async with owner.running(), process.running():
        await asyncio.sleep(120)
    assert not failures
    assert (owner.fewest, places(cluster)) == (2, "bb")
    assert is_clean(cluster)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_slow_release_is_not_decided_before_its_result_is_known(when):
    """The events of other pods trigger decisions of the owner at any time."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS)
    process = drain_process(cluster)

    async def delay(what: str) -> None:
        if what == "patch pods":
            await asyncio.sleep(3)

    setattr(process.client, when, delay)
    async with owner.running(), process.running():
        await asyncio.sleep(60)
    assert (owner.fewest, places(cluster)) == (REPLICAS, "bbbb")
    assert process.reasons().count("Replacing") == REPLICAS
    assert process.client.writes.count("patch pods") == REPLICAS
    assert is_clean(cluster)


async def test_restored_pod_is_not_moved_as_bare_pod_before_it_is_adopted():
    """The controller manager is slow, and the node is drained again."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2, ready_after=None)
    before = {found["metadata"]["uid"] for found in cluster.all("pods")}
    async with drain_process(cluster).running():
        async with owner.running():
            await asyncio.sleep(5)
        cluster.put("nodes", node("a"))
        await asyncio.sleep(5)
        assert hashes(cluster) == {"h1"}
        body = node("a", unschedulable=True)
        body["metadata"]["annotations"] = {names.ANNOTATION_DRAIN: "{}"}
        cluster.put("nodes", body)
        await asyncio.sleep(30)
    assert before <= {found["metadata"]["uid"] for found in owner.active()}
