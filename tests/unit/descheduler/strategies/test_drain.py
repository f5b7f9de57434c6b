"""Drains of virtual nodes on a fake cluster in virtual time: nothing is lost, and no Ready pod too few at any write."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from controller_runtime.api import drain, names
from controller_runtime.errors import BadRequest, ConnectionFailed, Forbidden, ServerTimeout
from descheduler.config.options import EvictionOptions
from descheduler.strategies.base import Params
from descheduler.strategies.drain import Drain
from descheduler.view.departure import Departure
from tests.fakes.apiserver.client import refusing
from tests.unit.descheduler.bodies import node, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.replica_sets import ReplicaSets, is_ready

pytestmark = pytest.mark.looptime

REPLICAS = 4
_REQUEST = json.dumps({"podTimeoutSeconds": 30})


def _cluster(*, is_draining: bool = True) -> Cluster:
    cluster = Cluster()
    body = node("a", unschedulable=is_draining)
    if is_draining:
        body["metadata"]["annotations"] = {names.ANNOTATION_DRAIN: _REQUEST}
    cluster.put("nodes", body)
    cluster.put("nodes", node("b"))
    return cluster


def _process(cluster: Cluster, **options: Any) -> Process:
    process = Process(cluster, options=EvictionOptions(**options))
    process.add(Drain, Params())
    return process


def _status(cluster: Cluster) -> drain.Status | None:
    return drain.status_of(cluster.get("nodes", "a")["metadata"].get("annotations") or {})


def _departure(owner: str, namespace: str) -> Departure:
    return Departure(
        namespace=namespace, pod_name="p", old_uid=owner, node="a", strategy="Drain", reason="", owner_name=owner,
        owner_uid=owner, template_hash="h1", need=1, deadline="2026-01-01T00:00:00Z", request=_REQUEST,
    )  # fmt: skip


def _places(cluster: Cluster) -> str:
    return "".join(sorted(found["spec"]["nodeName"] for found in cluster.all("pods")))


def _is_clean(cluster: Cluster) -> bool:
    """Report whether no record and no released pod is left."""
    return not cluster.all("controllerrevisions") and _hashes(cluster) == {"h1"}


def _hashes(cluster: Cluster) -> set[str]:
    return {found["metadata"]["labels"]["pod-template-hash"] for found in cluster.all("pods")}


@pytest.mark.parametrize("wave", [1, 20])
async def test_replacements_are_ready_before_pods_leave(wave):
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS)
    process = _process(cluster, wave=wave)
    async with owner.running(), process.running():
        await asyncio.sleep(120)
    assert owner.fewest == REPLICAS
    assert _places(cluster) == "bbbb"
    assert _is_clean(cluster)
    status = _status(cluster)
    assert status is not None
    assert (status.moved, status.is_complete) == (REPLICAS, True)
    assert process.reasons().count("Rescheduled") == REPLICAS
    assert process.reasons()[-1] == "Drained"


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(14))
async def test_next_process_completes_drain_after_crash_at_any_write(number, is_done):
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=2)
    first = _process(cluster)
    async with owner.running():
        await first.run_until(lambda _what: len(first.client.writes) == number + is_done, is_done=is_done)
        await asyncio.sleep(5)
        async with _process(cluster).running():
            await asyncio.sleep(120)
    assert owner.fewest == 2
    assert _places(cluster) == "bb"
    assert _is_clean(cluster)


async def test_pods_of_owner_whose_replacement_is_not_ready_stay_and_others_move():
    """One tenant cannot stop the drain."""
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS, ready_after=None)
    before = {found["metadata"]["uid"] for found in cluster.all("pods")}
    process = _process(cluster)
    async with owner.running(), process.running():
        await asyncio.sleep(200)
        cluster.put("pods", pod("late", owner="x", kind="X", phase="Running", refused_at=None))
        await asyncio.sleep(20)
    assert owner.fewest == REPLICAS
    assert {found["metadata"]["uid"] for found in cluster.all("pods")} == before
    assert _is_clean(cluster)
    status = _status(cluster)
    assert status is not None
    assert "its replacement was not Ready in time" in status.pods[-1].why
    assert (status.moved, status.moving, status.waiting, status.staying) == (1, 0, 0, REPLICAS)
    assert (status.is_over, status.stopped) == (True, "")
    assert process.reasons().count("RescheduleRolledBack") == 2  # maxSurge


@pytest.mark.parametrize(("namespaces", "is_stopped"), [("aaaa", False), ("aabb", False), ("abc", True)])
async def test_stops_when_moves_fail_in_several_namespaces(namespaces, is_stopped):
    cluster = _cluster()
    process = Process(cluster)
    drained = process.add(Drain, Params())
    async with process.running():
        await asyncio.sleep(5)
        for number, namespace in enumerate(namespaces):
            drained._ended(_departure(f"{namespace}{number}", namespace), "late")
        cluster.put("pods", pod("bare", phase="Running", refused_at=None))
        await asyncio.sleep(20)
    status = _status(cluster)
    assert status is not None
    assert (bool(status.stopped), status.waiting) == (is_stopped, int(is_stopped))


async def test_one_namespace_gets_half_of_wave():
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS, ready_after=None)
    cluster.change("deployments", "default/web", spec={"strategy": {"rollingUpdate": {"maxSurge": "100%"}}})
    async with owner.running(), _process(cluster, wave=4).running():
        await asyncio.sleep(10)
        status = _status(cluster)
    assert status is not None
    assert (status.moving, status.waiting) == (2, 2)


@pytest.mark.parametrize(
    ("ends", "grace", "namespace", "seconds"),
    [
        ("2025-01-01T00:00:00Z", 30, "default", 20),
        ("2056-01-01T00:00:00Z", 30 * 365.25 * 86400, "default", 90),
        ("2056-01-01T00:00:00Z", 30 * 365.25 * 86400, "ns", 20),
    ],
    ids=["finalizer", "long grace period", "of another namespace"],
)
async def test_pods_that_never_end_do_not_fill_the_wave(ends, grace, namespace, seconds):
    cluster = _cluster()
    cluster.dead_nodes.add("a")
    deleted = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": int(grace)}
    for number in range(4):
        body = pod(f"p{number}", owner="x", kind="X", phase="Running", refused_at=None, finalizers=["x/y"])
        cluster.put("pods", {**body, "metadata": {**body["metadata"], **deleted}})
    cluster.put("pods", pod("q", owner="q", kind="X", phase="Running", refused_at=None, namespace=namespace))
    process = _process(cluster, wave=2)
    async with process.running():
        await asyncio.sleep(seconds)
        assert len(cluster.all("pods")) == 5
        assert process.client.writes.count("create eviction") == 1


async def test_marked_pods_do_not_fill_the_wave():
    """A user can mark them again whenever their label was restored."""
    cluster = _cluster()
    labels = {"pod-template-hash": "h1-leaving"}
    marks = {names.ANNOTATION_LEAVING: "h1"}
    for number in range(4):
        body = pod(f"p{number}", phase="Running", refused_at=None, labels=labels, annotations=marks)
        cluster.put("pods", body)
    process = _process(cluster, wave=2)
    async with process.running():
        await asyncio.sleep(10)
        cluster.put("pods", pod("q", owner="q", kind="X", phase="Running", refused_at=None))
        await asyncio.sleep(10)
    assert process.client.writes.count("create eviction") == 1


async def test_drain_is_over_although_a_deleted_pod_does_not_end():
    cluster = _cluster()
    cluster.dead_nodes.add("a")
    body = pod("p", owner="x", kind="X", phase="Running", refused_at=None, finalizers=["x/y"])
    ends = {"deletionTimestamp": "2025-12-31T23:59:30Z", "deletionGracePeriodSeconds": 30}
    cluster.put("pods", {**body, "metadata": {**body["metadata"], **ends}})
    async with _process(cluster).running():
        await asyncio.sleep(20)
        early = _status(cluster)
        await asyncio.sleep(20)
        late = _status(cluster)
    assert early is not None
    assert late is not None
    assert (early.moving, early.is_over) == (1, False)
    assert (late.staying, late.is_over) == (1, True)


async def test_drain_is_over_although_requests_fail():
    cluster = _cluster()
    for number in range(2):
        cluster.put("pods", pod(f"p{number}", owner="x", kind="X", phase="Running", refused_at=None))
    process = _process(cluster)
    served, process.client.fault = process.client.fault, refusing(BadRequest("no", code=400), "pods/eviction")
    async with process.running():
        await asyncio.sleep(20)
        early = _status(cluster)
        await asyncio.sleep(60)
        late = _status(cluster)
        process.client.fault = served
        await asyncio.sleep(60)
    assert early is not None
    assert late is not None
    assert (early.waiting, early.is_over) == (2, False)
    assert (late.staying, late.is_over) == (2, True)
    assert cluster.all("pods") == []


async def test_webhook_without_dry_run_does_not_keep_pods(monkeypatch):
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=2)
    evict = cluster.evict

    def refuse(key: str, body: Any, *, who: str = "", dry_run: bool = False) -> Any:
        if dry_run:
            raise BadRequest("admission webhook x does not support dry run", code=400)
        return evict(key, body, who=who)

    monkeypatch.setattr(cluster, "evict", refuse)
    async with owner.running(), _process(cluster).running():
        await asyncio.sleep(60)
    assert (owner.fewest, _places(cluster)) == (2, "bb")


async def test_released_pod_of_orphaning_owner_stays():
    """Its siblings stay, too: ``kubectl delete replicaset --cascade=orphan``."""
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=2, ready_after=None)
    before = {found["metadata"]["uid"] for found in cluster.all("pods")}
    async with _process(cluster).running():
        async with owner.running():
            await asyncio.sleep(5)
        assert not _is_clean(cluster)
        deleted = {"deletionTimestamp": "2026-01-01T00:00:05Z", "finalizers": ["orphan"]}
        cluster.change("replicasets", "default/web-h1", metadata=deleted)
        await asyncio.sleep(5)
        assert _hashes(cluster) == {"h1"}
        assert before <= {found["metadata"]["uid"] for found in owner.active()}


async def test_status_fits_into_annotations_of_node():
    """A tenant writes a part of the reasons."""
    text = "\x01" * 6000
    states = {str(number): drain.PodState(f"{'n' * 63}/{'p' * 253}", "stays", text) for number in range(100)}
    status = drain.summary(states, request=_REQUEST, moved=0, stopped=text)
    assert len(msgspec.json.encode(status)) < 200 * 1024


async def test_refused_pods_of_an_owner_take_turns():
    """Each attempt for a pod of a StatefulSet lists all of its pods."""
    cluster = _cluster()
    count, seconds = 50, 300
    for number in range(count):
        cluster.put("pods", pod(f"p{number}", owner="x", kind="X", phase="Running", refused_at=None))
    cluster.budget_denies = True
    process = _process(cluster)
    async with process.running():
        await asyncio.sleep(seconds)
        assert process.client.writes.count("create eviction") <= seconds
        asked = {
            key for verb, plural, key in process.client.calls if (verb, plural) == ("create", "pods/eviction")
        }
        assert len(asked) == count
        cluster.budget_denies = False
        await asyncio.sleep(400)
    assert cluster.all("pods") == []


async def test_cancelled_drain_restores_pods_that_wait():
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS, ready_after=20)
    async with owner.running(), _process(cluster).running():
        await asyncio.sleep(10)
        assert not _is_clean(cluster)
        cluster.put("nodes", node("a"))
        await asyncio.sleep(60)
    assert owner.fewest == REPLICAS
    assert _places(cluster) == "aaaa"
    assert _is_clean(cluster)


async def test_pods_of_deleted_owner_are_deleted():
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=2, ready_after=None)
    async with owner.running(), _process(cluster).running():
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
    cluster = _cluster(is_draining=False)
    labels = {"app": "web", "pod-template-hash": "h1-leaving"}
    body = pod(
        "p", phase="Running", refused_at=None, labels=labels, annotations={names.ANNOTATION_LEAVING: "h1"}
    )
    cluster.put("pods", body)
    process = _process(cluster)
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
    """No label can be restored from it, so it would keep the pod on its node for ever."""
    cluster = _cluster()
    labels = {"app": "web"} | ({"pod-template-hash": label} if label else {})
    marks = {names.ANNOTATION_LEAVING: mark}
    cluster.put("pods", pod("p", phase="Running", refused_at=None, labels=labels, annotations=marks))
    async with _process(cluster).running():
        await asyncio.sleep(60)
    assert all(found["spec"].get("nodeName") != "a" for found in cluster.all("pods"))


async def test_pod_of_several_budgets_stays():
    """API servers never evict it, so it is not released."""
    cluster = _cluster()
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
    process = _process(cluster)
    async with owner.running(), process.running():
        await asyncio.sleep(60)
    status = _status(cluster)
    assert status is not None
    assert (status.staying, status.is_over) == (2, True)
    assert "more than one PodDisruptionBudget" in status.pods[0].why
    assert "patch pods" not in process.client.writes


@pytest.mark.parametrize(
    "error", [ConnectionFailed("silent"), ServerTimeout("late", code=504), Forbidden("no", code=403)]
)
@pytest.mark.parametrize("is_applied", [False, True])
async def test_release_with_unknown_result_is_decided(error, is_applied):
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=2)
    process = _process(cluster)
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
    assert (owner.fewest, _places(cluster)) == (2, "bb")
    assert _is_clean(cluster)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_slow_release_is_not_decided_before_its_result_is_known(when):
    """The events of other pods trigger decisions of the owner at any time."""
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS)
    process = _process(cluster)

    async def delay(what: str) -> None:
        if what == "patch pods":
            await asyncio.sleep(3)

    setattr(process.client, when, delay)
    async with owner.running(), process.running():
        await asyncio.sleep(60)
    assert (owner.fewest, _places(cluster)) == (REPLICAS, "bbbb")
    assert process.reasons().count("Replacing") == REPLICAS
    assert process.client.writes.count("patch pods") == REPLICAS
    assert _is_clean(cluster)


async def test_restored_pod_is_not_moved_as_bare_pod_before_it_is_adopted():
    """The controller manager is slow, and the node is drained again."""
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=2, ready_after=None)
    before = {found["metadata"]["uid"] for found in cluster.all("pods")}
    async with _process(cluster).running():
        async with owner.running():
            await asyncio.sleep(5)
        cluster.put("nodes", node("a"))
        await asyncio.sleep(5)
        assert _hashes(cluster) == {"h1"}
        body = node("a", unschedulable=True)
        body["metadata"]["annotations"] = {names.ANNOTATION_DRAIN: "{}"}
        cluster.put("nodes", body)
        await asyncio.sleep(30)
    assert before <= {found["metadata"]["uid"] for found in owner.active()}


async def test_replica_set_without_deployment_moves_one_pod_at_a_time():
    cluster = _cluster()
    owner = ReplicaSets(cluster, replicas=2)
    cluster.remove("deployments", "default/web")
    async with owner.running(), _process(cluster).running():
        await asyncio.sleep(60)
    assert (owner.fewest, _places(cluster)) == (1, "bb")
    assert len(cluster.created) == 4


async def test_each_pod_that_cannot_move_is_listed_with_its_reason():
    cluster = _cluster()
    volumes = {"volumes": [{"name": "v", "emptyDir": {}}]}
    only_a = {"nodeSelector": {"kubernetes.io/hostname": "a"}}
    cluster.put("pods", pod("cache", phase="Running", refused_at=None, spec=volumes))
    cluster.put("pods", pod("tied", phase="Running", refused_at=None, spec=only_a))
    cluster.put("pods", pod("agent", owner="ds", kind="DaemonSet", phase="Running", refused_at=None))
    cluster.put("pods", pod("bare", phase="Running", refused_at=None))
    async with _process(cluster).running():
        await asyncio.sleep(60)
    status = _status(cluster)
    assert status is not None
    assert {one.pod: (one.state, one.why) for one in status.pods} == {
        "default/cache": (
            "stays",
            "it has local storage (--evict-local-storage-pods, or drain --delete-emptydir-data)",
        ),
        "default/tied": ("stays", "no other ready virtual node admits it"),
    }
    assert (status.moved, status.is_over, status.is_complete) == (1, True, False)


async def test_stateful_set_moves_one_pod_at_a_time():
    cluster = _cluster()
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
    async with _process(cluster).running():
        await asyncio.sleep(120)
    task.cancel()
    assert (fewest, _places(cluster)) == (2, "bbb")


async def test_stops_without_cordon_and_with_invalid_request():
    cluster = _cluster()
    cluster.put("pods", pod("bare", phase="Running", refused_at=None))
    cluster.change("nodes", "a", spec={"unschedulable": False})
    async with _process(cluster).running():
        await asyncio.sleep(5)
        status = _status(cluster)
        assert status is not None
        assert "kubectl cordon a" in status.stopped
        cluster.change(
            "nodes",
            "a",
            spec={"unschedulable": True},
            metadata={"annotations": {names.ANNOTATION_DRAIN: "{x"}},
        )
        await asyncio.sleep(5)
        status = _status(cluster)
        assert status is not None
        assert "is not valid" in status.stopped
        assert _places(cluster) == "a"
