"""Jobs that are gangs of Kubernetes itself (scheduling.k8s.io), with the stock scheduler and two lower clusters of ten places.

The feature gates are off by default, so the upper cluster is an own one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_multi_scheduler
from hack.sandbox.nodes.kwok import kwok_node
from tests.waiting import becomes, eventually, get, node_ready, own_namespace

pytestmark = pytest.mark.e2e
_FEATURES = ("GenericWorkload", "WorkloadWithJob")
_API = "--runtime-config=scheduling.k8s.io/v1beta1=true"
_PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox() -> AsyncIterator[Sandbox]:
    """The clusters, a virtual-node process, and the multi-scheduler."""
    async with Sandbox(kwok_nodes=1, upper_features=_FEATURES, upper_apiserver_args=[_API]) as running:
        for cluster in running.lower:
            await cluster.kubectl("delete", "node", "--all")
            # Two nodes, so that the places of a cluster are not one large room.
            await cluster.apply(*(kwok_node(f"{cluster.name}-{number}", cpu="5") for number in range(2)))
        for cluster in running.lower:
            for number in range(2):
                await node_ready(cluster, f"{cluster.name}-{number}")
        await running.upper.apply(_PRIORITY)
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(running)), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for cluster in running.lower:
            await node_ready(running.upper, f"vn-{cluster.name}")
        await start_multi_scheduler(running)
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(sandbox: Sandbox) -> AsyncIterator[str]:
    """A namespace for the test."""
    async with own_namespace(sandbox.upper, *sandbox.lower) as name:
        yield name


def _job(namespace: str, name: str, size: int, *, priority: str = "") -> dict[str, Any]:
    """Return a Job that is a gang, whose pods are only evicted together."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "parallelism": size,
            "completions": size,
            "completionMode": "Indexed",
            "backoffLimit": 1000,
            "scheduling": {
                "schedulingPolicy": {"gang": {"minCount": size}},
                "disruptionMode": {"all": {}},
            },
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    **({"priorityClassName": priority} if priority else {}),
                    "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
                    "containers": [
                        {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
                    ],
                }
            },
        },
    }


async def _pods(cluster: Cluster, namespace: str, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await get(cluster, namespace, "pods", labels=f"job-name={job}"))["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


async def _running(cluster: Cluster, namespace: str, job: str) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in await _pods(cluster, namespace, job))


async def _bound(cluster: Cluster, namespace: str, job: str) -> int:
    return sum(bool(pod["spec"].get("nodeName")) for pod in await _pods(cluster, namespace, job))


def _failure(pod: dict[str, Any]) -> str:
    conditions = pod["status"].get("conditions") or []
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")


async def test_second_gang_waits_whole_until_the_first_ends(sandbox: Sandbox, namespace: str) -> None:
    """Gangs of 8 and 16 on 10 + 10 places. Lower clusters have no PodGroups, so lower pods name none."""
    upper = sandbox.upper
    await upper.apply(_job(namespace, "first", 8))
    await becomes(lambda: _running(upper, namespace, "first"), 8, what="the first gang runs")
    lower = [pod for cluster in sandbox.lower for pod in await _pods(cluster, namespace, "first")]
    assert len(lower) == 8
    assert not any("schedulingGroup" in pod["spec"] for pod in lower)
    assert all("schedulingGroup" in pod["spec"] for pod in await _pods(upper, namespace, "first"))
    await upper.apply(_job(namespace, "second", 16))

    async def is_rejected() -> bool:
        return any("minCount (16)" in _failure(pod) for pod in await _pods(upper, namespace, "second"))

    await eventually(is_rejected, what="the scheduler rejects the second gang")
    single = {
        **_job(namespace, "single", 1)["spec"]["template"],
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "single", "namespace": namespace, "labels": {"job-name": "single"}},
    }
    await upper.apply(single)
    await becomes(lambda: _running(upper, namespace, "single"), 1, what="a single pod gets room meanwhile")
    await upper.kubectl("-n", namespace, "delete", "pod", "single")
    for _ in range(10):
        assert await _bound(upper, namespace, "second") == 0
        await asyncio.sleep(0.3)
    await upper.kubectl("-n", namespace, "delete", "job", "first")
    await becomes(lambda: _running(upper, namespace, "second"), 16, what="the second gang runs")


async def test_urgent_gang_preempts_a_whole_gang(sandbox: Sandbox, namespace: str) -> None:
    """The urgent gang needs four of the eight places, and all eight pods of the other gang are evicted."""
    upper = sandbox.upper
    await upper.apply(_job(namespace, "low", 8))
    await becomes(lambda: _running(upper, namespace, "low"), 8, what="the gang of low priority runs")
    await upper.apply(_job(namespace, "urgent", 16, priority="urgent"))
    await becomes(lambda: _running(upper, namespace, "urgent"), 16, what="the urgent gang runs")
    assert await _bound(upper, namespace, "low") == 0
    places = [len(await _pods(cluster, namespace, "urgent")) for cluster in sandbox.lower]
    assert all(places)
