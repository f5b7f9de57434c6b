"""Drains on a fake cluster that is full of pods which do not move: what one tenant can delay, and when a drain is over."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from clusterset.model import names
from clusterset.model.moving import drain
from controller_runtime.errors import BadRequest
from descheduler.strategies.base import Params
from descheduler.strategies.drain import Drain
from tests.fakes.apiserver.client import refusing
from tests.unit.descheduler.bodies import pod
from tests.unit.descheduler.draining import (
    REPLICAS,
    REQUEST,
    departure,
    drain_process,
    drain_status,
    draining_cluster,
    is_clean,
)
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.replica_sets import ReplicaSets

pytestmark = pytest.mark.looptime


async def test_pods_of_owner_whose_replacement_is_not_ready_stay_and_others_move():
    """One tenant cannot stop the drain."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS, ready_after=None)
    before = {found["metadata"]["uid"] for found in cluster.all("pods")}
    process = drain_process(cluster)
    async with owner.running(), process.running():
        await asyncio.sleep(200)
        cluster.put("pods", pod("late", owner="x", kind="X", phase="Running", refused_at=None))
        await asyncio.sleep(20)
    assert owner.fewest == REPLICAS
    assert {found["metadata"]["uid"] for found in cluster.all("pods")} == before
    assert is_clean(cluster)
    status = drain_status(cluster)
    assert status is not None
    assert "its replacement was not Ready in time" in status.pods[-1].why
    assert (status.moved, status.moving, status.waiting, status.staying) == (1, 0, 0, REPLICAS)
    assert (status.is_over, status.stopped) == (True, "")
    assert process.reasons().count("RescheduleRolledBack") == 2  # maxSurge


@pytest.mark.parametrize(("namespaces", "is_stopped"), [("aaaa", False), ("aabb", False), ("abc", True)])
async def test_stops_when_moves_fail_in_several_namespaces(namespaces, is_stopped):
    cluster = draining_cluster()
    process = Process(cluster)
    drained = process.add(Drain, Params())
    async with process.running():
        await asyncio.sleep(5)
        for number, namespace in enumerate(namespaces):
            drained._ended(departure(f"{namespace}{number}", namespace), "late")
        cluster.put("pods", pod("bare", phase="Running", refused_at=None))
        await asyncio.sleep(20)
    status = drain_status(cluster)
    assert status is not None
    assert (bool(status.stopped), status.waiting) == (is_stopped, int(is_stopped))


async def test_one_namespace_gets_half_of_wave():
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=REPLICAS, ready_after=None)
    cluster.change("deployments", "default/web", spec={"strategy": {"rollingUpdate": {"maxSurge": "100%"}}})
    async with owner.running(), drain_process(cluster, wave=4).running():
        await asyncio.sleep(10)
        status = drain_status(cluster)
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
    cluster = draining_cluster()
    cluster.dead_nodes.add("a")
    deleted = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": int(grace)}
    for number in range(4):
        body = pod(f"p{number}", owner="x", kind="X", phase="Running", refused_at=None, finalizers=["x/y"])
        cluster.put("pods", {**body, "metadata": {**body["metadata"], **deleted}})
    cluster.put("pods", pod("q", owner="q", kind="X", phase="Running", refused_at=None, namespace=namespace))
    process = drain_process(cluster, wave=2)
    async with process.running():
        await asyncio.sleep(seconds)
        assert len(cluster.all("pods")) == 5
        assert process.client.writes.count("create eviction") == 1


async def test_marked_pods_do_not_fill_the_wave():
    """A user can mark them again whenever their label was restored."""
    cluster = draining_cluster()
    labels = {"pod-template-hash": "h1-leaving"}
    marks = {names.ANNOTATION_LEAVING: "h1"}
    for number in range(4):
        body = pod(f"p{number}", phase="Running", refused_at=None, labels=labels, annotations=marks)
        cluster.put("pods", body)
    process = drain_process(cluster, wave=2)
    async with process.running():
        await asyncio.sleep(10)
        cluster.put("pods", pod("q", owner="q", kind="X", phase="Running", refused_at=None))
        await asyncio.sleep(10)
    assert process.client.writes.count("create eviction") == 1


async def test_drain_is_over_although_a_deleted_pod_does_not_end():
    cluster = draining_cluster()
    cluster.dead_nodes.add("a")
    body = pod("p", owner="x", kind="X", phase="Running", refused_at=None, finalizers=["x/y"])
    ends = {"deletionTimestamp": "2025-12-31T23:59:30Z", "deletionGracePeriodSeconds": 30}
    cluster.put("pods", {**body, "metadata": {**body["metadata"], **ends}})
    async with drain_process(cluster).running():
        await asyncio.sleep(20)
        early = drain_status(cluster)
        await asyncio.sleep(20)
        late = drain_status(cluster)
    assert early is not None
    assert late is not None
    assert (early.moving, early.is_over) == (1, False)
    assert (late.staying, late.is_over) == (1, True)


async def test_drain_waits_for_long_grace_period_and_says_until_when():
    """As ``kubectl drain``. The pods of others are not delayed."""
    cluster = draining_cluster()
    cluster.dead_nodes.add("a")
    body = pod("p", owner="x", kind="X", phase="Running", refused_at=None)
    ends = {"deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": 3600}
    cluster.put("pods", {**body, "metadata": {**body["metadata"], **ends}})
    async with drain_process(cluster).running():
        await asyncio.sleep(1800)
        status = drain_status(cluster)
    assert status is not None
    assert [one.why for one in status.pods] == ["it is ending, its grace period ends at 2026-01-01T01:00:00Z"]
    assert (status.moving, status.is_over) == (1, False)


async def test_drain_is_over_although_requests_fail():
    cluster = draining_cluster()
    for number in range(2):
        cluster.put("pods", pod(f"p{number}", owner="x", kind="X", phase="Running", refused_at=None))
    process = drain_process(cluster)
    served, process.client.fault = process.client.fault, refusing(BadRequest("no", code=400), "pods/eviction")
    async with process.running():
        await asyncio.sleep(20)
        early = drain_status(cluster)
        await asyncio.sleep(60)
        late = drain_status(cluster)
        process.client.fault = served
        await asyncio.sleep(60)
    assert early is not None
    assert late is not None
    assert (early.waiting, early.is_over) == (2, False)
    assert (late.staying, late.is_over) == (2, True)
    assert cluster.all("pods") == []


async def test_status_fits_into_annotations_of_node():
    """A tenant writes a part of the reasons."""
    text = "\x01" * 6000
    states = {str(number): drain.PodState(f"{'n' * 63}/{'p' * 253}", "stays", text) for number in range(100)}
    status = drain.summary(states, request=REQUEST, moved=0, stopped=text)
    assert len(msgspec.json.encode(status)) < 200 * 1024


async def test_refused_pods_of_an_owner_take_turns():
    """Each attempt for a pod of a StatefulSet lists all of its pods."""
    cluster = draining_cluster()
    count, seconds = 50, 300
    for number in range(count):
        cluster.put("pods", pod(f"p{number}", owner="x", kind="X", phase="Running", refused_at=None))
    cluster.budget_denies = True
    process = drain_process(cluster)
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
