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
from hack.sandbox.demo import configuration
from hack.sandbox.kwok import kwok_node
from hack.sandbox.scheduling import start_multi_scheduler
from tests.waiting import becomes, eventually, get, node_ready, own_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]
_AT_ONCE = 16
"""Number of concurrent requests that create pods."""
_SECONDS = 30.0
"""Limit for the start of 200 pods; on an idle machine it takes a tenth."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    """Both clusters, a virtual-node process, and the multi-scheduler."""
    async with Sandbox(lower=2, kwok_nodes=1) as running:
        small, large = running.lower
        for cluster in running.lower:
            await cluster.kubectl("delete", "node", "--all")
        await small.apply(*(kwok_node(f"small-{number}", cpu="4") for number in range(3)))
        await large.apply(kwok_node("large-0", cpu="256"))
        for number in range(3):
            await node_ready(small, f"small-{number}")
        await node_ready(large, "large-0")
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(running)), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for cluster in running.lower:
            await node_ready(running.upper, f"vn-{cluster.name}")
        await start_multi_scheduler(running)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(sandbox: Sandbox) -> AsyncIterator[str]:
    """A namespace for the test."""
    async with own_namespace(sandbox.upper, *sandbox.lower) as name:
        yield name


def _pod(group: str, number: int, size: int, cluster: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{group}-{number}",
            "labels": {"group": group},
            "annotations": {
                "virtual-node.io/pod-group": group,
                "virtual-node.io/min-members": str(size),
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
    assert seconds < _SECONDS
