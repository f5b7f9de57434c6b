"""The number of requests that a pod on a virtual node causes in both clusters."""

from __future__ import annotations

import pytest

from hack.sandbox import Sandbox
from tests.benchmarks.bench_load import client_of, measure
from tests.waiting import node_ready

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

REQUESTS = {
    "upper": {
        "POST pods": 1, "POST serviceaccounts/token": 1, "PATCH pods/status": 1, "POST events": 1, "DELETE pods": 2,
    },
    "lower1": {
        "POST secrets": 1, "POST pods": 1, "POST pods/binding": 1, "PATCH pods/status": 1, "POST events": 1,
        "DELETE pods": 3, "DELETE secrets": 1,
    },
}  # fmt: skip
"""Requests that API servers get for the whole life of a pod on a virtual node, from all clients. Of those in the
lower cluster, the scheduler sends the binding and the event, and kwok the status and two deletions."""
NOISE = 0.2
"""Requests per pod that do not depend on pods, such as for the namespace, and repeated ones."""


async def test_a_pod_on_a_virtual_node_causes_no_more_requests_than_pinned():
    """Every further request costs throughput; ``bench_load --requests`` shows the same table with more pods."""
    count = 200
    async with Sandbox(lower=1, kwok_nodes=1) as sandbox:
        await sandbox.start_virtual_node(
            f"--client-kubeconfig={sandbox.lower[0].kubeconfig}", "--nodename=vn", "--adopt-namespaces=*",
            env={"KUBELET_PORT": "0"},
        )  # fmt: skip
        await node_ready(sandbox.upper, "vn")
        async with await client_of(sandbox.upper) as upper:
            # Slower than the clusters, so that no status is written twice on a busy machine.
            measured = await measure(sandbox, upper, node="vn", count=count, rate=20, processes=())
    grown = [
        f"{cluster}: {row} {found:.2f} per pod, pinned {REQUESTS[cluster].get(row, 0)}"
        for cluster, rows in measured.requests.items()
        for row, found in rows.items()
        if found > REQUESTS[cluster].get(row, 0) + NOISE
    ]
    assert not grown, f"more requests than in {__name__}.REQUESTS: {grown}"
