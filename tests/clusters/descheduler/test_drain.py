"""Drains of virtual nodes on real control planes: no Service loses an endpoint, and what cannot move is reported."""

from __future__ import annotations

import asyncio
from typing import Any

from hack.sandbox import Cluster, Sandbox
from tests.clusters.descheduler.served import (
    REPLICAS,
    endpoints,
    full_quota,
    owned,
    released,
    started,
    web_on_small,
)
from tests.clusters.descheduler.setup import (
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
from tests.clusters.pods.test_volumes import STATIC, claim, storage_class, volume
from tests.waiting import becomes, create, eventually


async def test_drain_and_refill_leave_service_complete(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Although the budget allows no disruption, all pods move to the other cluster and back, without a gap."""
    await web_on_small(upper, namespace, _budget())
    async with descheduler(sandbox, namespace), endpoints(upper, namespace) as seen:
        await started(upper, namespace, seen)
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
    await web_on_small(upper, namespace)
    async with (
        descheduler(sandbox, namespace, "--make-before-break=false"),
        endpoints(upper, namespace) as seen,
    ):
        await started(upper, namespace, seen)
        code, text = await command(upper, "drain", SMALL, "--timeout=90s")
        assert code == 0, text
        await run_on(upper, namespace, LARGE, count=REPLICAS)
        await command(upper, "uncordon", SMALL)
        assert min(seen) < REPLICAS, seen


async def test_pods_stay_if_quota_is_full(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """No replacement can be created, so the same pods still belong to the Deployment afterwards."""
    before = await web_on_small(upper, namespace, full_quota())
    async with descheduler(sandbox, namespace), endpoints(upper, namespace) as seen:
        await started(upper, namespace, seen)
        code, text = await command(upper, "drain", SMALL, "--pod-timeout=5s", "--timeout=90s")
        assert (code, "exceeded quota" in text, " waits: " in text) == (1, True, True), text
        await command(upper, "uncordon", SMALL)
        await no_records(upper, namespace)
        assert await owned(upper, namespace) == before
        assert min(seen[seen.index(REPLICAS) :]) == REPLICAS
        assert await events_of(upper, namespace, "RescheduleRolledBack")


async def test_next_leader_completes_drain(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """The process is killed while pods are released and their replacements cannot be created yet."""
    await web_on_small(upper, namespace, full_quota())
    async with endpoints(upper, namespace) as seen:
        async with descheduler(sandbox, namespace) as process:
            await started(upper, namespace, seen)
            task = asyncio.create_task(command(upper, "drain", SMALL, "--timeout=150s"))
            await eventually(lambda: released(upper, namespace), what="the ReplicaSet releases a pod")
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
        f"{namespace}/cache stays it has local storage (allow it: drain --delete-emptydir-data, or --evict-local-storage-pods of the descheduler)",
        f"{namespace}/db-0 evicted, one at a time",
        f"{namespace}/db-1 evicted, one at a time",
    ]
    async with descheduler(sandbox, namespace), endpoints(upper, namespace) as seen:
        await started(upper, namespace, seen, count=0)
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


async def test_pod_stays_with_volume_that_only_its_cluster_reaches(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Dry run and drain give the same reason, which names claim and volume."""
    small, name = sandbox.lower[0], f"vault-{namespace}"
    for cluster in (upper, small):
        await cluster.apply(storage_class(STATIC, "kubernetes.io/no-provisioner"))
    await small.apply(volume(name, sandbox.directory / "vault", "small-0", storage_class=STATIC))
    await upper.kubectl("wait", "--for=create", f"pv/lower1-{name}", "--timeout=150s")
    user = pod("db", cpu="100m")
    user["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    await create(upper, namespace, claim("data", STATIC), user)
    await run_on(upper, namespace, SMALL, count=1)
    why = f"its claim data is bound to volume lower1-{name}, which no other ready virtual node reaches"
    code, text = await command(upper, "drain", SMALL, "--dry-run")
    assert (code, why in text) == (1, True), text
    async with descheduler(sandbox, namespace):
        await upper.kubectl(
            "-n", namespace, "wait", "--for=create", "lease/virtual-node-descheduler", "--timeout=150s"
        )
        code, text = await command(upper, "drain", SMALL, "--timeout=90s")
        assert (code, why in text) == (1, True), text
    await command(upper, "uncordon", SMALL)
    await run_on(upper, namespace, SMALL, count=1)


def _budget() -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    }
