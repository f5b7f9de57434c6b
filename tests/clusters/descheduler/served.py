"""Service ``web``, the pods of its Deployment on one virtual node, and the number of its ready endpoints over time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from hack.sandbox import Cluster
from tests.background import working
from tests.clusters.descheduler.setup import LARGE, SMALL, cordoned, deployment, pods_of, run_on
from tests.waiting import create, eventually, get
from tests.workloads import manifest, service

REPLICAS = 5


async def started(upper: Cluster, namespace: str, seen: list[int], *, count: int = REPLICAS) -> None:
    """Wait until the descheduler works and the Service has all endpoints."""

    async def so() -> bool:
        lease = await get(upper, namespace, "lease", "virtual-node-descheduler")
        return bool(lease["spec"].get("holderIdentity")) and (seen or [0])[-1] == count

    await eventually(so, what="the descheduler leads, and all endpoints are ready")


@contextlib.asynccontextmanager
async def endpoints(upper: Cluster, namespace: str) -> AsyncIterator[list[int]]:
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
            listed = [one for found in slices.store.list() for one in found.field("endpoints") or ()]
            seen.append(sum(bool(one["conditions"].get("ready")) for one in listed))

        slices.on_change(count)
        async with working(slices.run()):
            yield seen


async def web_on_small(upper: Cluster, namespace: str, *more: dict[str, Any]) -> set[str]:
    """Create the Service and its pods; return the UIDs of the pods."""
    async with cordoned(upper, LARGE):
        await create(
            upper, namespace, service({"port": 80}), deployment("web", replicas=REPLICAS, cpu="100m")
        )
        await run_on(upper, namespace, SMALL, count=REPLICAS)
    await create(upper, namespace, *more)

    async def counted() -> bool:
        items = (await get(upper, namespace, "resourcequotas"))["items"]
        return all((one.get("status") or {}).get("used") for one in items)

    await eventually(counted, what="the quota counts the pods")
    return await owned(upper, namespace)


async def owned(upper: Cluster, namespace: str) -> set[str]:
    """Return the UIDs of the pods that have an owner."""
    found = await pods_of(upper, namespace)
    return {one["metadata"]["uid"] for one in found if one["metadata"].get("ownerReferences")}


def full_quota() -> dict[str, Any]:
    return manifest("ResourceQuota", "full", spec={"hard": {"pods": str(REPLICAS)}})


async def released(upper: Cluster, namespace: str) -> bool:
    """Report whether a pod has left its ReplicaSet and was not evicted yet."""
    return any(not one["metadata"].get("ownerReferences") for one in await pods_of(upper, namespace))
