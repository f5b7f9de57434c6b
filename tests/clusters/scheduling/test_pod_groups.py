"""Pods of a group start together or not at all, with the stock scheduler on real API servers.

Lower cluster 1 has twelve places for pods of one core, lower cluster 2 has one large node.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from controller_runtime import resources
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_multi_scheduler
from hack.sandbox.nodes.kwok import kwok_node
from hack.sandbox.process import Process
from tests.clusters.pool import Lend
from tests.waiting import becomes, eventually, get, node_ready, own_namespace

pytestmark = pytest.mark.e2e
_AT_ONCE = 16
"""Number of concurrent requests that create pods."""
_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
        },
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"minMember": {"type": "integer"}}}
                        },
                    }
                },
            }
        ],
    },
}
_PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Both clusters, a virtual-node process, and the multi-scheduler."""
    async with simulated() as running:
        small, large = running.lower
        for cluster in running.lower:
            await cluster.kubectl("delete", "node", "--all")
        await small.apply(*(kwok_node(f"small-{number}", cpu="4") for number in range(3)))
        await large.apply(
            kwok_node("large-0", cpu="256"), kwok_node("zone-0", cpu="1", labels={"zone": "a"}),
            *(kwok_node(f"zone-{number}", cpu="2", labels={"zone": "b"}) for number in (1, 2)),
        )  # fmt: skip
        for number in range(3):
            await node_ready(small, f"small-{number}")
        for node in ("large-0", "zone-0", "zone-1", "zone-2"):
            await node_ready(large, node)
        await running.upper.apply(_CRD, _PRIORITY)
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(running)), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for cluster in running.lower:
            await node_ready(running.upper, f"vn-{cluster.name}")
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def extender(sandbox: Sandbox) -> Process:
    """Run the multi-scheduler, with which the stock scheduler binds pods."""
    return await start_multi_scheduler(sandbox)


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(sandbox: Sandbox, extender: Process) -> AsyncIterator[str]:
    """A namespace for the test."""
    async with own_namespace(sandbox.upper, *sandbox.lower) as name:
        yield name


def _pod(group: str, number: int, size: int, cluster: str, **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{group}-{number}",
            "labels": {"group": group},
            "annotations": {
                "virtual-node.io/pod-group": group,
                "virtual-node.io/min-members": str(size),
                **{f"virtual-node.io/{key.replace('_', '-')}": value for key, value in annotations.items()},
            },
        },
        "spec": {
            "nodeSelector": {"clusterID": cluster},
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "containers": [{"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}],
        },
    }


async def _create(upper: Cluster, namespace: str, pods: list[dict[str, Any]]) -> None:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(pod: dict[str, Any]) -> None:
        async with turns:
            await upper.api.create(resources.PODS.path(namespace=namespace), pod)

    await asyncio.gather(*map(one, pods))


async def _bound(upper: Cluster, namespace: str, group: str) -> int:
    found = (await get(upper, namespace, "pods", labels=f"group={group}"))["items"]
    return sum(bool(pod["spec"].get("nodeName")) for pod in found)


async def _running(upper: Cluster, namespace: str, group: str) -> int:
    found = (await get(upper, namespace, "pods", labels=f"group={group}"))["items"]
    return sum(pod["status"]["phase"] == "Running" for pod in found)


async def test_second_group_starts_after_the_first(sandbox: Sandbox, namespace: str) -> None:
    """Two groups of eight pods on twelve places; their pods are created in turns."""
    upper = sandbox.upper
    pods = [_pod(group, number, 8, "lower1") for number in range(8) for group in ("x", "y")]
    await _create(upper, namespace, pods)
    first = ""

    async def one_runs() -> bool:
        nonlocal first
        both = {group: await _bound(upper, namespace, group) for group in ("x", "y")}
        assert not all(both.values()), both
        first = next((group for group, count in both.items() if count == 8), "")
        return bool(first) and await _running(upper, namespace, first) == 8

    await eventually(one_runs, what="all pods of one group run")
    second = "y" if first == "x" else "x"

    async def waiting() -> str:
        conditions = (await get(upper, namespace, "pod", f"{second}-0"))["status"].get("conditions") or []
        return next((one["message"] for one in conditions if one["type"] == "PodScheduled"), "")

    async def is_explained() -> bool:
        text = f"pod group {namespace}/{second} needs room for 8 pods at once; lower cluster lower1 has room for 4"
        return text in await waiting()

    await eventually(is_explained, what="the scheduler's event says why the group waits")
    assert await _bound(upper, namespace, second) == 0
    await upper.kubectl("-n", namespace, "delete", "pods", "-l", f"group={first}", "--wait=true")
    began = time.monotonic()

    async def other_runs() -> int:
        return await _running(upper, namespace, second)

    await becomes(other_runs, 8, what="all pods of the other group run")
    print("seconds until the second group runs", round(time.monotonic() - began, 1))  # noqa: T201 - a measurement


async def test_large_group_starts_soon(sandbox: Sandbox, namespace: str) -> None:
    """The pods that the scheduler rejected before the last one existed are retried at once."""
    upper = sandbox.upper
    began = time.monotonic()
    await _create(upper, namespace, [_pod("big", number, 200, "lower2") for number in range(200)])
    created = time.monotonic()

    async def bound() -> int:
        return await _bound(upper, namespace, "big")

    async def running() -> int:
        return await _running(upper, namespace, "big")

    await becomes(bound, 200, what="all pods are bound")
    bound_after = time.monotonic() - began
    await becomes(running, 200, what="all pods run")
    seconds = time.monotonic() - began
    print("seconds to create 200 pods", round(created - began, 1))  # noqa: T201 - a measurement
    print("seconds until they are bound", round(bound_after, 1))  # noqa: T201 - a measurement
    print("seconds until they run", round(seconds, 1))  # noqa: T201 - a measurement


async def test_pod_group_object_gives_the_minimum(sandbox: Sandbox, namespace: str) -> None:
    """The label of scheduler-plugins, and its PodGroup."""
    upper = sandbox.upper
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "four", "namespace": namespace},
        "spec": {"minMember": 4},
    }
    await upper.apply(group)
    pods = [_pod("four", number, 4, "lower1") for number in range(4)]
    for pod in pods:
        pod["metadata"]["annotations"] = {}
        pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "four"
    await _create(upper, namespace, pods[:3])

    async def is_incomplete() -> bool:
        conditions = (await get(upper, namespace, "pod", "four-0"))["status"].get("conditions") or []
        return any(f"pod group {namespace}/four has " in one.get("message", "") for one in conditions)

    await eventually(is_incomplete, what="the pods wait for the fourth one")
    assert await _bound(upper, namespace, "four") == 0
    await _create(upper, namespace, pods[3:])

    async def running() -> int:
        return await _running(upper, namespace, "four")

    await becomes(running, 4, what="all pods run")


async def test_urgent_group_preempts_room_for_all_its_pods(sandbox: Sandbox, namespace: str) -> None:
    """Twelve pods of no priority fill the cluster; eight are evicted at once, not one by one."""
    upper = sandbox.upper
    await _create(upper, namespace, [_pod("low", number, 1, "lower1") for number in range(12)])

    async def low() -> int:
        return await _running(upper, namespace, "low")

    async def urgent() -> int:
        return await _running(upper, namespace, "urgent")

    await becomes(low, 12, what="the cluster is full")
    pods = [_pod("urgent", number, 8, "lower1") for number in range(8)]
    for pod in pods:
        pod["spec"]["priorityClassName"] = "urgent"
    await _create(upper, namespace, pods)
    await becomes(urgent, 8, what="all pods of the urgent group run")
    assert await low() == 4


async def test_group_runs_in_one_zone(sandbox: Sandbox, namespace: str, extender: Process) -> None:
    """Zone b has room for four pods, zone a for one; the extender binds the pods and passes the zone on."""
    await extender.stop()
    await start_multi_scheduler(sandbox, bind=True)
    upper, lower = sandbox.upper, sandbox.lower[1]
    too_large = [_pod("six", number, 6, "lower2", pod_group_topology="zone") for number in range(6)]
    await _create(upper, namespace, too_large)

    async def is_explained() -> bool:
        conditions = (await get(upper, namespace, "pod", "six-0"))["status"].get("conditions") or []
        return any(
            "lower cluster lower2, zone=b has room for 4" in one.get("message", "") for one in conditions
        )

    await eventually(is_explained, what="the scheduler's event names the zone with most room")
    await upper.kubectl("-n", namespace, "delete", "pods", "-l", "group=six", "--wait=true")
    await _create(
        upper,
        namespace,
        [_pod("four", number, 4, "lower2", pod_group_topology="zone") for number in range(4)],
    )

    async def nodes() -> list[str]:
        found = (await get(lower, namespace, "pods", labels="group=four"))["items"]
        return sorted(pod["spec"].get("nodeName", "") for pod in found)

    await becomes(nodes, ["zone-1", "zone-1", "zone-2", "zone-2"], what="all pods run in zone b")
