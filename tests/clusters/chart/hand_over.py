"""Checks while the programs of an installation are replaced: the owners of clusters, and new pods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.helm import NAMESPACE
from tests.background import working
from tests.clusters.chart.installation import read
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, eventually, get, own_namespace, ready


async def replicas(upper: Cluster) -> list[dict[str, Any]]:
    found = await read(upper, "-n", NAMESPACE, "pods", "-l", "app.kubernetes.io/component=virtual-node")
    items: list[dict[str, Any]] = found["items"]
    return items


@contextlib.asynccontextmanager
async def pods_each_second(installed: Sandbox) -> AsyncIterator[None]:
    """Create a pod each second in the block. Each must run within a minute, and have exactly one lower pod."""
    upper, lower = installed.upper, installed.lower[1]
    loop, over, delays = asyncio.get_running_loop(), asyncio.Event(), list[float]()

    async def follow(namespace: str) -> None:
        while not over.is_set():
            begin, name = loop.time(), f"steady-{len(delays)}"
            await create(upper, namespace, pod(name, "sleep 3600", node=lower.name))
            await ready(upper, namespace, name)
            delays.append(loop.time() - begin)
            await asyncio.sleep(1)

    async with own_namespace(upper, lower) as namespace:
        async with working(follow(namespace)) as following:
            yield
            over.set()
            await following
        above, below = await asyncio.gather(*(get(one, namespace, "pods") for one in (upper, lower)))
        owners = [one["metadata"]["labels"]["virtual-node.io/upper-uid"] for one in below["items"]]
        assert sorted(owners) == sorted(one["metadata"]["uid"] for one in above["items"])
    assert delays
    assert max(delays) < 60, delays


async def owners(upper: Cluster, *, not_in: set[str]) -> list[str]:
    """Wait until two replicas run one cluster each and are not among these pods; return their pods."""
    found: list[str] = []

    async def others() -> bool:
        leases = await get(upper, NAMESPACE, "leases", labels="virtual-node.io/lower-cluster")
        holders = [str(lease["spec"].get("holderIdentity") or "") for lease in leases["items"]]
        found[:] = sorted({holder.rpartition("-")[0] for holder in holders} - {""})
        return len(found) == len(holders) == 2 and not not_in & {*found}

    await eventually(others, what="two replicas with one cluster each")
    return found
