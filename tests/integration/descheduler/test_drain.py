"""Drains of virtual nodes on real control planes: no Service loses an endpoint, and what cannot move is reported."""

from __future__ import annotations

import asyncio
import contextlib
import sys
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
    cordoned,
    deployment,
    descheduler,
    events_of,
    no_records,
    run_on,
)
from tests.waiting import create, eventually, get

REPLICAS = 5


async def test_drain_and_refill_leave_service_complete(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Although the budget allows no disruption, all pods move to the other cluster and back, without a gap."""
    async with cordoned(upper, LARGE):
        await create(
            upper, namespace, _service(), _budget(), deployment("web", replicas=REPLICAS, cpu="100m")
        )
        await run_on(upper, namespace, SMALL, count=REPLICAS)
    async with descheduler(sandbox, namespace), _endpoints(upper, namespace) as seen:
        await _started(upper, namespace, seen)
        seen.clear()
        for source, target in ((SMALL, LARGE), (LARGE, SMALL)):
            code, text = await _command(upper, "drain", source, "--timeout=90s")
            assert code == 0, text
            await run_on(upper, namespace, target, count=REPLICAS)
            await _command(upper, "uncordon", source)
        assert min(seen) >= REPLICAS, seen
        assert len(await events_of(upper, namespace, "Rescheduled")) == 2 * REPLICAS
        await no_records(upper, namespace)


async def test_without_make_before_break_endpoints_are_lost(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """The same drain, with the mechanism off."""
    async with cordoned(upper, LARGE):
        await create(upper, namespace, _service(), deployment("web", replicas=REPLICAS, cpu="100m"))
        await run_on(upper, namespace, SMALL, count=REPLICAS)
    async with (
        descheduler(sandbox, namespace, "--make-before-break=false"),
        _endpoints(upper, namespace) as seen,
    ):
        await _started(upper, namespace, seen)
        code, text = await _command(upper, "drain", SMALL, "--timeout=90s")
        assert code == 0, text
        await run_on(upper, namespace, LARGE, count=REPLICAS)
        await _command(upper, "uncordon", SMALL)
        assert min(seen) < REPLICAS, seen


async def _started(upper: Cluster, namespace: str, seen: list[int]) -> None:
    """Wait until the descheduler works and the Service has all endpoints."""

    async def so() -> bool:
        lease = await get(upper, namespace, "lease", "virtual-node-descheduler")
        return bool(lease["spec"].get("holderIdentity")) and bool(seen) and seen[-1] == REPLICAS

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


async def _command(upper: Cluster, *arguments: str) -> tuple[int, str]:
    """Run ``virtual-node`` as a user does; return the exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "virtual_node", arguments[0], f"--kubeconfig={upper.kubeconfig}", *arguments[1:]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


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
