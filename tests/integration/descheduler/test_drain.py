"""Drains of virtual nodes on real control planes: no Service loses an endpoint, and what cannot move is reported."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from hack.sandbox import Cluster, Sandbox
from tests.integration.descheduler.setup import (
    LARGE,
    SMALL,
    command,
    cordoned,
    deployment,
    descheduler,
    events_of,
    no_records,
    pod,
    pods_of,
    run_on,
)
from tests.waiting import becomes, create, eventually, get

REPLICAS = 5


async def test_drain_and_refill_leave_service_complete(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Although the budget allows no disruption, all pods move to the other cluster and back, without a gap."""
    await _web_on_small(upper, namespace, _budget())
    async with descheduler(sandbox, namespace), _endpoints(upper, namespace) as seen:
        await _started(upper, namespace, seen)
        seen.clear()
        for source, target in ((SMALL, LARGE), (LARGE, SMALL)):
            code, text = await command(upper, "drain", source, "--timeout=90s")
            assert code == 0, text
            await run_on(upper, namespace, target, count=REPLICAS)
            await command(upper, "uncordon", source)
        assert min(seen) >= REPLICAS, seen
        assert len(await events_of(upper, namespace, "Rescheduled")) == 2 * REPLICAS
        await no_records(upper, namespace)


async def test_without_make_before_break_endpoints_are_lost(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """The same drain, with the mechanism off."""
    await _web_on_small(upper, namespace)
    async with (
        descheduler(sandbox, namespace, "--make-before-break=false"),
        _endpoints(upper, namespace) as seen,
    ):
        await _started(upper, namespace, seen)
        code, text = await command(upper, "drain", SMALL, "--timeout=90s")
        assert code == 0, text
        await run_on(upper, namespace, LARGE, count=REPLICAS)
        await command(upper, "uncordon", SMALL)
        assert min(seen) < REPLICAS, seen


async def test_pods_stay_if_quota_is_full(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """No replacement can be created, so the same pods still belong to the Deployment afterwards."""
    before = await _web_on_small(upper, namespace, _full_quota())
    async with descheduler(sandbox, namespace), _endpoints(upper, namespace) as seen:
        await _started(upper, namespace, seen)
        code, text = await command(upper, "drain", SMALL, "--pod-timeout=5s", "--timeout=90s")
        assert (code, "exceeded quota" in text) == (1, True), text
        await command(upper, "uncordon", SMALL)
        await no_records(upper, namespace)
        assert await _owned(upper, namespace) == before
        assert min(seen[seen.index(REPLICAS) :]) == REPLICAS
        assert await events_of(upper, namespace, "RescheduleRolledBack")


async def test_next_leader_completes_drain(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """The process is killed while pods are released and their replacements cannot be created yet."""
    await _web_on_small(upper, namespace, _full_quota())
    async with _endpoints(upper, namespace) as seen:
        async with descheduler(sandbox, namespace) as process:
            await _started(upper, namespace, seen)
            task = asyncio.create_task(command(upper, "drain", SMALL, "--timeout=150s"))

            async def released() -> bool:
                found = await pods_of(upper, namespace)
                return any(not one["metadata"].get("ownerReferences") for one in found)

            await eventually(released, what="the ReplicaSet releases a pod")
            await process.kill()
        await upper.kubectl("-n", namespace, "delete", "resourcequota", "full")
        async with descheduler(sandbox, namespace):
            code, text = await task
            assert code == 0, text
        await run_on(upper, namespace, LARGE, count=REPLICAS)
        await command(upper, "uncordon", SMALL)
        assert min(seen[seen.index(REPLICAS) :]) >= REPLICAS
        await no_records(upper, namespace)


async def test_dry_run_predicts_moves_of_other_pods(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A StatefulSet, a bare pod and a pod with local storage: how they move, and which one stays."""
    template = deployment("db", replicas=2, cpu="100m")
    stateful = {**template, "kind": "StatefulSet", "spec": {**template["spec"], "serviceName": "db"}}
    cache = pod("cache", cpu="100m")
    cache["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    async with cordoned(upper, LARGE):
        await create(upper, namespace, stateful, pod("bare", cpu="100m"), cache)
        await run_on(upper, namespace, SMALL, count=4)
    code, text = await command(upper, "drain", SMALL, "--dry-run")
    rows = [" ".join(line.split()[1:]) for line in text.splitlines() if f"{namespace}/" in line]
    assert code == 1
    assert rows == [
        f"{namespace}/bare re-created",
        f"{namespace}/cache stays it has local storage (--evict-local-storage-pods, or drain --delete-emptydir-data)",
        f"{namespace}/db-0 evicted, one at a time",
        f"{namespace}/db-1 evicted, one at a time",
    ]
    async with descheduler(sandbox, namespace), _endpoints(upper, namespace) as seen:
        await _started(upper, namespace, seen, endpoints=0)
        code, text = await command(upper, "drain", SMALL, "--timeout=90s")
        assert (code, f"{namespace}/cache" in text) == (1, True), text

        async def places() -> dict[str, str]:
            found = await pods_of(upper, namespace)
            return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in found}

        wanted = {"bare": LARGE, "db-0": LARGE, "db-1": LARGE, "cache": SMALL}
        await becomes(places, wanted, what="all pods except one on the other cluster")
        await command(upper, "uncordon", SMALL)
    code, text = await command(upper, "drain", SMALL)
    assert (code, "no descheduler is running" in text) == (2, True), text


async def _started(upper: Cluster, namespace: str, seen: list[int], *, endpoints: int = REPLICAS) -> None:
    """Wait until the descheduler works and the Service has all endpoints."""

    async def so() -> bool:
        lease = await get(upper, namespace, "lease", "virtual-node-descheduler")
        return bool(lease["spec"].get("holderIdentity")) and (seen or [0])[-1] == endpoints

    await eventually(so, what="the descheduler leads, and all endpoints are ready")


@contextlib.asynccontextmanager
async def _endpoints(upper: Cluster, namespace: str) -> AsyncIterator[list[int]]:
    """Watch the EndpointSlices of the Service; the list gets the number of ready endpoints after each change."""
    config = await kubeconfig.load(str(upper.kubeconfig), in_cluster=False)
    seen: list[int] = []
    async with Client(config, cluster="upper") as client:
        slices = Informer(
            client,
            resources.ENDPOINT_SLICES,
            namespace=namespace,
            label_selector="kubernetes.io/service-name=web",
        )

        def count(_slice: Any) -> None:
            endpoints = [one for found in slices.store.list() for one in found.field("endpoints") or ()]
            seen.append(sum(bool(one["conditions"].get("ready")) for one in endpoints))

        slices.on_change(count)
        task = asyncio.create_task(slices.run())
        try:
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }


def _budget() -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    }


async def _web_on_small(upper: Cluster, namespace: str, *more: dict[str, Any]) -> set[str]:
    """Create the Service and its pods; return the UIDs of the pods."""
    async with cordoned(upper, LARGE):
        await create(upper, namespace, _service(), deployment("web", replicas=REPLICAS, cpu="100m"))
        await run_on(upper, namespace, SMALL, count=REPLICAS)
    await create(upper, namespace, *more)

    async def counted() -> bool:
        items = (await get(upper, namespace, "resourcequotas"))["items"]
        return all((one.get("status") or {}).get("used") for one in items)

    await eventually(counted, what="the quota counts the pods")
    return await _owned(upper, namespace)


async def _owned(upper: Cluster, namespace: str) -> set[str]:
    """Return the UIDs of the pods that have an owner."""
    found = await pods_of(upper, namespace)
    return {one["metadata"]["uid"] for one in found if one["metadata"].get("ownerReferences")}


def _full_quota() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full"},
        "spec": {"hard": {"pods": str(REPLICAS)}},
    }
