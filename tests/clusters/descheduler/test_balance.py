"""Strategies that balance clusters, from a policy file."""

from __future__ import annotations

import asyncio

from hack.sandbox import Cluster, Sandbox
from tests.clusters.descheduler.setup import (
    LARGE,
    SMALL,
    cordoned,
    deployment,
    descheduler,
    pods_of,
    run_on,
    webhook,
)
from tests.waiting import becomes, create, eventually


async def test_duplicates_spread(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A policy file with RemoveDuplicates: four pods of one owner end as two in each cluster, and stay there."""
    policy = sandbox.directory / f"policy-{namespace}.yaml"
    policy.write_text(
        """
        apiVersion: descheduler/v1alpha2
        kind: DeschedulerPolicy
        profiles:
        - name: spread
          plugins:
            balance:
              enabled: [RemoveDuplicates]
        """,
        encoding="utf-8",
    )
    async with webhook(sandbox, namespace):
        async with cordoned(upper, LARGE):
            await create(upper, namespace, deployment("web", replicas=4, cpu="100m"))
            await run_on(upper, namespace, SMALL, count=4)

        async def spread() -> bool:
            found = await pods_of(upper, namespace)
            places = sorted(item["spec"].get("nodeName", "") for item in found)
            return places == [SMALL, SMALL, LARGE, LARGE]

        arguments = (f"--policy-config-file={policy}", "--descheduling-interval=2s")
        async with descheduler(sandbox, namespace, *arguments):
            await eventually(spread, what="two pods in each cluster")
            await asyncio.sleep(5)
            assert await spread()


async def test_low_node_utilization_balances_clusters(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """An overused cluster gives pods to the underused one until it reaches its target."""
    policy = sandbox.directory / f"policy-{namespace}.yaml"
    policy.write_text(
        """
        apiVersion: descheduler/v1alpha2
        kind: DeschedulerPolicy
        profiles:
        - name: even
          pluginConfig:
          - name: LowNodeUtilization
            args: {thresholds: {cpu: 20}, targetThresholds: {cpu: 50}}
          plugins:
            balance:
              enabled: [LowNodeUtilization]
        """,
        encoding="utf-8",
    )
    async with webhook(sandbox, namespace):
        async with cordoned(upper, LARGE):
            await create(upper, namespace, deployment("web", replicas=4, cpu="900m"))
            await run_on(upper, namespace, SMALL, count=4)

        async def even() -> list[str]:
            return sorted(item["spec"].get("nodeName", "") for item in await pods_of(upper, namespace))

        arguments = (f"--policy-config-file={policy}", "--descheduling-interval=2s")
        async with descheduler(sandbox, namespace, *arguments):
            await becomes(even, [SMALL, SMALL, LARGE, LARGE], what="half of the small cluster's room is free")
            await asyncio.sleep(5)
            assert await even() == [SMALL, SMALL, LARGE, LARGE]
