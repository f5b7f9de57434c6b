"""Pods with evictionResponders: requested first, and evicted when no responder is left or none is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.errors import Forbidden, Unavailable
from descheduler.moving.evictor import Step, decide, request_for
from tests.unit.descheduler.bodies import cached, pod
from tests.unit.descheduler.refusing_clusters import THRESHOLD, cluster_with, names_of, process_on

pytestmark = pytest.mark.looptime
REQUESTS = "evictionrequests"


def responding(name: str = "p0", **fields: Any) -> dict[str, Any]:
    """Return an owned pod that has a responder."""
    body = pod(name, owner="rs")
    body["spec"] |= {"evictionResponders": [{"name": "acme.example/mover", "priority": 10000}], **fields}
    return body


def _request(status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    body = request_for(cached(responding()))
    return {**body, "spec": {**body["spec"], **spec}, "status": status}


_OBSERVED = {"observedGeneration": 1}


@pytest.mark.parametrize(
    ("request_", "waited", "expected"),
    [
        (None, 0, Step.REQUEST),
        (None, 1000, Step.REQUEST),
        (_request({}), 29, Step.WAIT),
        (_request({}), 30, Step.EVICT),
        (_request(_OBSERVED), 100_000, Step.WAIT),
        (_request({"conditions": [{"type": "TargetEvicted", "status": "True"}], **_OBSERVED}), 60, Step.WAIT),
        (_request({"conditions": [{"type": "Failed", "status": "False"}], **_OBSERVED}), 60, Step.WAIT),
        (_request({"conditions": [{"type": "Failed", "status": "True"}], **_OBSERVED}), 0, Step.EVICT),
        (_request(_OBSERVED, intent="Withdrawn"), 0, Step.EVICT),
        (_request(_OBSERVED, requester="acme.example/other"), 0, Step.EVICT),
    ],
)
def test_waits_while_a_controller_processes_the_request(request_: Any, waited: float, expected: Step):
    assert decide(cached(responding()), request_, waited=waited) is expected


def _observe(cluster: Any, **status: Any) -> None:
    for key, body in cluster.objects[REQUESTS].items():
        cluster.replace(REQUESTS, key, status={"observedGeneration": 1, **status}, metadata=body["metadata"])


async def test_a_pod_is_evicted_after_its_responders_have_failed():
    cluster = cluster_with(responding())
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
        (request,) = cluster.all(REQUESTS)
        assert request["spec"] == request_for(cached(cluster.get("pods", "default/p0")))["spec"]
        _observe(cluster)
        await asyncio.sleep(600)
        assert names_of(cluster) == ["p0"]
        _observe(cluster, conditions=[{"type": "Failed", "status": "True"}])
        await asyncio.sleep(90)
    assert names_of(cluster) == []
    assert process.client.writes.count(f"create {REQUESTS}") == 1


async def test_a_pod_is_evicted_where_no_controller_observes_requests():
    """As in Kubernetes 1.37, which serves the API but has no such controller."""
    cluster = cluster_with(responding())
    async with process_on(cluster).running():
        await asyncio.sleep(THRESHOLD + 20)
        assert names_of(cluster) == ["p0"]
        await asyncio.sleep(60)
    assert names_of(cluster) == []


@pytest.mark.parametrize(
    "error",
    [Unavailable("404 page not found", code=404), Forbidden("no", code=403)],
    ids=["not served", "no right"],
)
async def test_a_pod_is_evicted_at_once_where_its_eviction_cannot_be_requested(error: Exception):
    cluster = cluster_with(responding())
    process = process_on(cluster)

    async def refuse(what: str) -> None:
        if what == f"create {REQUESTS}":
            raise error

    process.client.before = refuse
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
    assert names_of(cluster) == []


@pytest.mark.parametrize("body", [pod("p0", owner="rs"), responding(schedulingGroup={"podGroupName": "g"})])
async def test_a_pod_without_responders_or_of_a_group_is_not_requested(body: dict[str, Any]):
    cluster = cluster_with(body)
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
    assert f"create {REQUESTS}" not in process.client.writes
    assert names_of(cluster) == []


@pytest.mark.parametrize(
    ("change", "node", "is_withdrawn"),
    [({}, "a", True), ({"requester": "acme.example/other"}, "a", False), ({}, "machine", False)],
)
async def test_a_request_of_an_earlier_leader_is_withdrawn(
    change: dict[str, str],
    node: str,
    is_withdrawn: bool,  # noqa: FBT001
):
    """Its drain may have been cancelled while there was no leader. Requests for pods of other nodes are those of others."""
    body = responding()
    body["spec"]["nodeName"] = node
    cluster = cluster_with({**body, "status": {"phase": "Running"}})
    request = request_for(cached(cluster.get("pods", "default/p0")))
    cluster.put(REQUESTS, {**request, "spec": {**request["spec"], **change}, "status": _OBSERVED})
    async with process_on(cluster).running():
        await asyncio.sleep(100)
        assert cluster.all(REQUESTS)
        await asyncio.sleep(200)
    assert bool(cluster.all(REQUESTS)) is not is_withdrawn
    assert names_of(cluster) == ["p0"]


async def test_a_request_is_withdrawn_when_the_pod_may_stay():
    cluster = cluster_with(responding())
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(THRESHOLD + 5)
        _observe(cluster)
        body = cluster.get("pods", "default/p0")
        cluster.replace("pods", "default/p0", status={"phase": "Running"}, metadata=body["metadata"])
        await asyncio.sleep(100)
        assert cluster.all(REQUESTS)
        await asyncio.sleep(200)
        assert not cluster.all(REQUESTS)
    assert names_of(cluster) == ["p0"]
