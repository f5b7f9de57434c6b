"""kubectl top in the upper cluster where the lower one allows no access to kubelets, only to its metrics API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.metrics_server import start_metrics_server
from tests.clusters.commands.test_inspect import least
from tests.clusters.virtual_nodes import REAL, pod
from tests.waiting import create, eventually, make_namespace, node_ready, ready
from virtual_node.rights.daemon import LOWER

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
SPACE = "measured"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters() -> AsyncIterator[Sandbox]:
    """Metrics-servers in both clusters, and a virtual node without the right to the node proxy."""
    async with Sandbox(lower=1, real_node=True) as running, contextlib.AsyncExitStack() as stack:
        for cluster in (running.upper, running.lower[0]):
            stack.push_async_callback((await start_metrics_server(running, cluster)).stop)
        whole = configuration(running)
        rights = [right for right in LOWER if (right.resource, right.subresource) != ("nodes", "proxy")]
        assert len(rights) == len(LOWER) - 1
        whole["clusters"][0]["kubeconfig"] = await least(running.lower[0], rights)
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(whole), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        await node_ready(running.upper, REAL)
        await make_namespace(running.upper, SPACE)
        yield running


async def _top(upper: Cluster, *arguments: str) -> list[str]:
    """Return the one line of ``kubectl top``; empty while there is none."""
    done = await upper.kubectl("top", *arguments, "--no-headers", check=False)
    return [] if done.returncode else done.stdout.split()


async def test_kubectl_top_shows_values_of_the_lower_metrics_api(clusters: Sandbox) -> None:
    """Plausible values of the node and of pods, including pods that use next to nothing."""
    upper = clusters.upper
    limits = {"limits": {"cpu": "300m"}, "requests": {"cpu": "100m"}}
    busy = pod("busy", "while :; do :; done", container={"resources": limits})
    await create(upper, SPACE, busy, pod("idle", "sleep 3600"))
    for name in ("busy", "idle"):
        await ready(upper, SPACE, name)

    async def busy_measured() -> bool:
        found = await _top(upper, "-n", SPACE, "pod", "busy")
        return bool(found) and 10 <= int(found[1].removesuffix("m")) <= 500 and "Mi" in found[2]

    async def idle_measured() -> bool:
        found = await _top(upper, "-n", SPACE, "pod", "idle")
        return bool(found) and int(found[1].removesuffix("m")) <= 5

    async def node_measured() -> bool:
        found = await _top(upper, "node", REAL)
        # No more than the machine has.
        return (
            bool(found)
            and 10 <= int(found[1].removesuffix("m")) <= 64_000
            and int(found[3].removesuffix("Mi")) > 100
        )

    await eventually(busy_measured, what="kubectl top pod shows a plausible part of a core")
    await eventually(idle_measured, what="kubectl top pod shows the pod that sleeps")
    await eventually(node_measured, what="kubectl top node shows the lower node's usage")
    log = (clusters.directory / "virtual-node.log").read_text(encoding="utf-8")
    assert "lower kubelets' metrics are refused" in log
