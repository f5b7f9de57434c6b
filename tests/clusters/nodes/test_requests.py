"""The number of requests that a pod on a virtual node causes in both clusters, and those of a restart."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from clusterset.model import names
from controller_runtime import resources
from hack.sandbox import Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.ports import free_ports
from tests.benchmarks import request_counts
from tests.benchmarks.bench_load import measure
from tests.benchmarks.bench_many_pods import has_handled, scrape
from tests.benchmarks.load import PodWatch, pod
from tests.benchmarks.stage import client_of, entry, start_nodes
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready

pytestmark = pytest.mark.e2e

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

PODS = 200
"""Pods that exist during the restart."""

SLOW = 5.0
"""Seconds from creation to Running with which a pod's status may be written twice, because a busy lower cluster has
not written it soon enough (``controllers/pods/status_writer.py``)."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Two clusters in which nothing else happens."""
    async with simulated(lower=1) as running:
        yield running


async def requests_of(sandbox: Sandbox, name: str, *flags: str) -> Mapping[str, dict[str, float]]:
    """Start a virtual node, run pods on it, stop it, and return the requests per pod by cluster."""
    process = await sandbox.start_virtual_node(
        f"--client-kubeconfig={sandbox.lower[0].kubeconfig}", f"--nodename={name}", "--adopt-namespaces=*",
        *flags, name=name, env={"KUBELET_PORT": "0"},
    )  # fmt: skip
    await node_ready(sandbox.upper, name)
    async with await client_of(sandbox.upper) as upper:
        measured = await measure(sandbox, [(upper, name)], count=200, rate=20, processes=())
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


async def test_a_restart_writes_only_what_changed_meanwhile(sandbox: Sandbox):
    """Events that were mirrored before are not written again; one that happened while stopped is mirrored."""
    upper, [lower] = sandbox.upper, sandbox.lower
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    metrics = f"http://{address}/metrics"
    process = await start_nodes(sandbox, [entry(lower)], metricsAddress=address)
    await make_namespace(upper, "quiet")
    async with (
        await client_of(upper) as client,
        PodWatch(client, namespace="quiet") as watch,
    ):
        for number in range(PODS):
            body = pod(f"p-{number}", namespace="quiet", node="vn-lower1")
            await client.create(resources.PODS, body, namespace="quiet")
        await watch.until(watch.ran, PODS)

    async def events() -> list[int]:
        # The virtual node writes an event of its own: pods cannot reach an upper API server on loopback.
        listed = [await get(one, "quiet", "events", fields="reason=Scheduled") for one in (lower, upper)]
        return [len(one["items"]) for one in listed]

    await becomes(events, [PODS, PODS], within=40, what="each pod's event in the lower cluster is mirrored")
    served = {one.name: await request_counts.served(one) for one in sandbox.clusters}
    await process.stop()
    last = (await get(lower, "quiet", "pods"))["items"][-1]
    meanwhile = {
        "apiVersion": "v1",
        "kind": "Event",
        # The last of the list, so that a copy of any other event would be written before.
        "metadata": {"name": "zz-meanwhile", "namespace": "quiet"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            **{key: last["metadata"][key] for key in ("namespace", "name", "uid")},
        },
        "type": "Normal",
        "reason": "Meanwhile",
        "message": "while the virtual node was stopped",
    }
    await create(lower, "quiet", meanwhile)
    await process.start()

    async def is_current() -> bool:
        found = await get(upper, "quiet", "events", fields="reason=Meanwhile")
        return bool(found["items"]) and await has_handled(metrics, PODS)

    async def written() -> dict[str, float]:
        name = "virtual_node_events_total"
        return {one.labels["outcome"]: one.value for one in await scrape(metrics) if one.name == name}

    await eventually(is_current, what="the virtual node has read everything")
    await becomes(written, {"created": 1}, what="only the event of meanwhile was written")
    for one in sandbox.clusters:
        writes = request_counts.writes(served[one.name], await request_counts.served(one))
        # Controllers of the clusters write events of their own, such as about Nodes of earlier tests.
        assert {row for row in writes if not row.endswith(" events")} == set(), one.name
    await process.stop()
