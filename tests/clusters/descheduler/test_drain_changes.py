"""Deployments that are rolled out and scaled on real control planes while their pods leave a drained virtual node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from clusterset.model.moving import drain
from hack.sandbox import Cluster, Sandbox
from tests.clusters.descheduler.served import (
    REPLICAS,
    endpoints,
    full_quota,
    released,
    started,
    web_on_small,
)
from tests.clusters.descheduler.setup import (
    LARGE,
    SMALL,
    command,
    descheduler,
    no_records,
    pods_of,
    run_on,
)
from tests.waiting import eventually, get


async def test_rollout_during_drain_completes_without_missing_endpoint(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Pods are released when the rollout begins, and a full quota prevents every replacement until both are in progress.

    A second drain that a user starts meanwhile continues the moves of the first.
    """
    await web_on_small(upper, namespace, full_quota())
    strategy = {"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 2}}}}
    await _patch(upper, namespace, strategy)
    async with descheduler(sandbox, namespace), endpoints(upper, namespace) as seen:
        await started(upper, namespace, seen)
        seen.clear()
        task = asyncio.create_task(command(upper, "drain", SMALL, "--timeout=150s"))
        await eventually(lambda: released(upper, namespace), what="the ReplicaSet releases a pod")
        again = asyncio.create_task(command(upper, "drain", SMALL, "--timeout=150s", "--pod-timeout=299s"))
        await eventually(lambda: _has_answered(upper, SMALL, 299), what="the second drain is in progress")
        await upper.kubectl("-n", namespace, "rollout", "restart", "deployment/web")
        await eventually(lambda: _has_replica_sets(upper, namespace, 2), what="the rollout has begun")
        await upper.kubectl("-n", namespace, "delete", "resourcequota", "full")
        for drained in (task, again):
            code, text = await drained
            assert code == 0, text
        await upper.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=150s")
        await _settled(sandbox, namespace, LARGE, REPLICAS)
        await upper.kubectl("uncordon", SMALL)
        assert min(seen) >= REPLICAS, seen
        reasons = {event["reason"] for event in (await get(upper, namespace, "events"))["items"]}
        assert "RescheduleRolledBack" not in reasons


async def test_replicas_change_during_drain(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """As an autoscaler does it, by the scale subresource; each change is made while a pod is leaving."""
    await web_on_small(upper, namespace)
    async with descheduler(sandbox, namespace), endpoints(upper, namespace) as seen:
        await started(upper, namespace, seen)
        seen[:-1] = []
        for source, target in ((SMALL, LARGE), (LARGE, SMALL)):
            task = asyncio.create_task(command(upper, "drain", source, "--timeout=150s"))
            before = least = REPLICAS
            for replicas in (8, 3, REPLICAS):

                async def is_leaving(task: asyncio.Task[Any] = task) -> bool:
                    return task.done() or await released(upper, namespace)

                await eventually(is_leaving, what="a pod is leaving")
                assert min(seen) >= least, seen
                seen[:-1] = []
                await upper.kubectl("-n", namespace, "scale", "deployment/web", f"--replicas={replicas}")
                await eventually(lambda: _is_observed(upper, namespace), what="the change is observed")
                before, least = replicas, min(before, replicas)
            code, text = await task
            assert code == 0, text
            await _settled(sandbox, namespace, target, REPLICAS)
            assert min(seen) >= least, seen
            seen[:-1] = []
            await command(upper, "uncordon", source)


async def _patch(upper: Cluster, namespace: str, patch: dict[str, Any]) -> None:
    await upper.kubectl(
        "-n", namespace, "patch", "deployment", "web", "--type=merge", "-p", json.dumps(patch)
    )


async def _has_answered(upper: Cluster, node: str, pod_timeout: float) -> bool:
    """Report whether the descheduler has answered the drain request with that ``podTimeoutSeconds``."""
    found = json.loads((await upper.kubectl("get", "node", node, "-o", "json")).stdout)
    status = drain.status_of(found["metadata"]["annotations"])
    return status is not None and drain.parse(status.request).pod_timeout_seconds == pod_timeout


async def _replica_sets(upper: Cluster, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await get(upper, namespace, "replicasets"))["items"]
    return items


async def _has_replica_sets(upper: Cluster, namespace: str, count: int) -> bool:
    return len(await _replica_sets(upper, namespace)) == count


async def _is_observed(upper: Cluster, namespace: str) -> bool:
    """Report whether the ReplicaSet has the number of replicas of the Deployment."""
    deployment = await get(upper, namespace, "deployment", "web")
    return [deployment["spec"]["replicas"]] == [
        one["spec"]["replicas"] for one in await _replica_sets(upper, namespace)
    ]


async def _settled(sandbox: Sandbox, namespace: str, node: str, count: int) -> None:
    """Wait until that many pods run on the node, all of the newest ReplicaSet, with one lower pod each, and no records."""
    upper = sandbox.upper
    await run_on(upper, namespace, node, count=count)
    await no_records(upper, namespace)
    newest = max(
        await _replica_sets(upper, namespace),
        key=lambda one: int(one["metadata"]["annotations"]["deployment.kubernetes.io/revision"]),
    )
    found = await pods_of(upper, namespace)
    owners = {owner["uid"] for one in found for owner in one["metadata"].get("ownerReferences") or ()}
    assert owners == {newest["metadata"]["uid"]}

    async def copied() -> bool:
        lower = [one for cluster in sandbox.lower for one in await pods_of(cluster, namespace)]
        return _uids(lower) == sorted(one["metadata"]["uid"] for one in found)

    await eventually(copied, what="each pod has one lower pod")


def _uids(lower: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(one["metadata"]["labels"]["virtual-node.io/upper-uid"] for one in lower)
