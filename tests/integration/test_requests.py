"""The number of requests that a pod on a virtual node causes in both clusters, with tokens per pod and shared ones."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from controller_runtime.api import names
from hack.sandbox import Sandbox
from tests.benchmarks.bench_load import measure
from tests.benchmarks.stage import client_of
from tests.waiting import get, node_ready

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

SHARED = {
    "upper": {"POST pods": 1, "PATCH pods/status": 1, "POST events": 1, "DELETE pods": 2},
    "lower1": {"POST pods": 1, "POST pods/binding": 1, "PATCH pods/status": 1, "POST events": 1, "DELETE pods": 3},
}  # fmt: skip
"""Requests that API servers get for the whole life of a pod on a virtual node with shared tokens, from all clients.
Of those in the lower cluster, the scheduler sends the binding and the event, and kwok the status and two deletions."""
OF_POD = {
    "upper": {**SHARED["upper"], "POST serviceaccounts/token": 1},
    "lower1": {**SHARED["lower1"], "POST secrets": 1, "DELETE secrets": 1},
}
"""The same with a token per pod."""
NOISE = 0.2
"""Requests per pod that do not depend on pods, such as for the namespace, and repeated ones."""

SLOW = 5.0
"""Seconds from creation to Running with which a pod's status may be written twice, because a busy lower cluster has
not written it soon enough (``controllers/pods/status_writer.py``)."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    """Two clusters in which nothing else happens."""
    async with Sandbox(lower=1, kwok_nodes=1) as running:
        yield running


async def requests_of(sandbox: Sandbox, name: str, *flags: str) -> Mapping[str, dict[str, float]]:
    """Start a virtual node, run pods on it, stop it, and return the requests per pod by cluster."""
    process = await sandbox.start_virtual_node(
        f"--client-kubeconfig={sandbox.lower[0].kubeconfig}", f"--nodename={name}", "--adopt-namespaces=*",
        *flags, name=name, env={"KUBELET_PORT": "0"},
    )  # fmt: skip
    await node_ready(sandbox.upper, name)
    async with await client_of(sandbox.upper) as upper:
        measured = await measure(sandbox, upper, node=name, count=200, rate=20, processes=())
    await process.stop()
    if measured.load.p99 > SLOW:
        measured.requests["upper"]["PATCH pods/status"] /= 2
    return measured.requests


def grown(found: Mapping[str, Mapping[str, float]], pinned: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the rows with more requests per pod than pinned."""
    return [
        f"{cluster}: {row} {count:.2f} per pod, pinned {pinned[cluster].get(row, 0)} (in {__name__})"
        for cluster, rows in found.items()
        for row, count in rows.items()
        if count > pinned[cluster].get(row, 0) + NOISE
    ]


async def test_a_pod_causes_no_more_requests_than_pinned(sandbox: Sandbox):
    """Every further request costs throughput; ``bench_load --requests`` shows the same table with more pods."""
    assert grown(await requests_of(sandbox, "vn-pod"), OF_POD) == []


async def test_a_shared_token_saves_the_requests_for_tokens(sandbox: Sandbox):
    """The upper cluster accepts the token, which is bound to the Node."""
    assert grown(await requests_of(sandbox, "vn-node", "--identity-tokens=node"), SHARED) == []
    [secret] = (
        await get(sandbox.lower[0], "load", "secrets", labels=f"{names.LABEL_NODE}=vn-node")
    )["items"]  # fmt: skip
    token = base64.b64decode(secret["data"]["token-0"]).decode()
    review = await sandbox.upper.api.create(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        },
    )
    user = review["status"]["user"]
    assert user["username"] == "system:serviceaccount:load:default"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == ["vn-node"]
