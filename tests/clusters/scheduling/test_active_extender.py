"""Of two processes of the extender, one answers at a time, on a real control plane."""

from __future__ import annotations

import asyncio
import itertools
import math
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from clusterset.model import names
from controller_runtime import resources
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.api import wait_healthy
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.components.scheduling import write_configuration
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from multi_scheduler.extender.active import AUTHORITY_SECONDS, LEASE_SECONDS
from tests.background import working
from tests.clusters.pool import Lend
from tests.waiting import create, eventually, get, make_namespace
from tests.workloads import kwok_pod, manifest

pytestmark = pytest.mark.e2e
NODE, LEASE, SHOP = "vn-lower1", "extender", "shop"
MARGIN = LEASE_SECONDS - AUTHORITY_SECONDS
Pod = dict[str, Any]


@dataclass
class Extender:
    """One process."""

    process: Process
    url: str
    session: aiohttp.ClientSession

    async def call(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a call as kube-scheduler does; return the result."""
        async with self.session.post(f"{self.url}/{verb}", json=body) as answer:
            result: dict[str, Any] = await answer.json(content_type=None)
            return result

    async def filter(self, pod: Pod) -> dict[str, Any]:
        return await self.call("filter", {"Pod": pod, "NodeNames": [NODE]})

    async def bind(self, pod: Pod) -> str:
        metadata = pod["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": SHOP, "PodUID": metadata["uid"], "Node": NODE}
        return str((await self.call("bind", body))["Error"])

    async def answers(self, pod: Pod) -> bool:
        return not (await self.filter(pod))["Error"]

    def signal(self, number: signal.Signals) -> None:
        assert self.process.identity is not None
        assert self.process.identity.signal(number)

    async def start(self) -> None:
        await self.process.start()
        await wait_healthy(self.process, f"{self.url}/readyz")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Two control planes. The upper cluster has the Node of the lower one, and no virtual node runs."""
    async with simulated(lower=1) as sandbox:
        labels = {names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL}
        node = manifest("Node", NODE, metadata={"labels": labels})
        await sandbox.upper.api.create(resources.NODES.path(), node)
        await make_namespace(sandbox.upper, SHOP)
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def extenders(sandbox: Sandbox) -> AsyncIterator[tuple[Extender, Extender]]:
    """Two processes that are ready, although at most one can be active."""
    file = write_configuration(sandbox, "extenders.json")
    # A suspended process answers late or never.
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        started = []
        for name, port in zip(("first", "second"), free_ports(2), strict=True):
            process = await sandbox.start_process(
                name,
                [
                    sys.executable, "-m", "multi_scheduler", f"--config={file}", f"--address={LOOPBACK}",
                    f"--kubeconfig={sandbox.upper.kubeconfig}", f"--port={port}", "--bind",
                    f"--namespace={SHOP}", f"--active-lease={LEASE}",
                ],
            )  # fmt: skip
            started.append(Extender(process, f"http://{LOOPBACK}:{port}", session))
        for extender in started:
            await wait_healthy(extender.process, f"{extender.url}/readyz")
        yield started[0], started[1]


async def _pod(sandbox: Sandbox, name: str, *, share: float = 0.0) -> Pod:
    """Create a pod that no scheduler places; share: its part of the lower node's cores."""
    (node,) = (await get(sandbox.lower[0], "", "nodes"))["items"]
    pod = kwok_pod(name, cpu=f"{int(int(node['status']['allocatable']['cpu']) * 1000 * share)}m")
    pod["spec"]["schedulerName"] = "nobody"
    await create(sandbox.upper, SHOP, pod)
    return await get(sandbox.upper, SHOP, "pods", name)


async def _holder(upper: Cluster) -> str:
    lease = await upper.api.read(resources.LEASES.path(namespace=SHOP, name=LEASE))
    return str(lease["spec"]["holderIdentity"])


class _Callers:
    """Schedulers that call both processes all the time."""

    def __init__(self, extenders: tuple[Extender, Extender], pod: Pod) -> None:
        self._extenders, self._pod = extenders, pod
        self.answers: list[tuple[float, Extender]] = []
        """Time and process of each answer, in the order of arrival."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for extender in self._extenders:
                group.create_task(self._call(extender))

    async def _call(self, extender: Extender) -> None:
        while True:
            try:
                if await extender.answers(self._pod):
                    self.answers.append((asyncio.get_running_loop().time(), extender))
            except (aiohttp.ClientError, TimeoutError):
                pass  # the process was killed or suspended
            await asyncio.sleep(0.2)

    async def takes_over(self, successor: Extender) -> float:
        """Wait until a process answers that did not answer before; return the seconds since the last other answer."""
        before = len(self.answers)

        async def answered() -> bool:
            return any(extender is successor for _, extender in self.answers[before:])

        await eventually(answered, what="the other process answers")
        first = next(at for at, extender in self.answers[before:] if extender is successor)
        return first - max(
            (at for at, extender in self.answers if extender is not successor), default=-math.inf
        )

    def changes(self) -> int:
        """Return how often the answering process changed."""
        return sum(one is not other for (_, one), (_, other) in itertools.pairwise(self.answers))


async def test_one_process_answers_at_a_time(sandbox: Sandbox, extenders: tuple[Extender, Extender]) -> None:
    """The other one takes over from a suspended, a killed and a stopped process, and knows the room that is taken."""
    first, second = extenders
    probe = await _pod(sandbox, "probe")
    big, other = [await _pod(sandbox, name, share=0.6) for name in ("big", "other")]
    await eventually(lambda: first.answers(probe), what="the first process is active")
    holder = await _holder(sandbox.upper)
    assert f"_{first.process.pid}_" in holder
    refusal = (await second.filter(big))["Error"]
    assert f"{holder} is the active replica" in refusal
    assert f"{holder} is the active replica" in await second.bind(big)
    assert (await first.filter(big))["NodeNames"] == [NODE]

    callers = _Callers(extenders, probe)
    async with working(callers.run()):
        await callers.takes_over(first)
        first.signal(signal.SIGSTOP)
        assert await callers.takes_over(second) > MARGIN
        # The first process promised this room, and was suspended before the binding.
        assert "filter the pod again" in await second.bind(big)
        assert (await second.filter(big))["NodeNames"] == [NODE]
        assert await second.bind(big) == ""
        first.signal(signal.SIGCONT)
        assert "is the active replica" in (await first.filter(other))["Error"]

        await second.process.kill()
        assert await callers.takes_over(first) > MARGIN
        assert list((await first.filter(other))["FailedNodes"]) == [NODE]

        await second.start()
        await first.process.stop()
        assert await callers.takes_over(second) < LEASE_SECONDS
        assert list((await second.filter(other))["FailedNodes"]) == [NODE]
    assert callers.changes() == 3
