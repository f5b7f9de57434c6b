"""Pods go where measured usage is best, from each source, and a lost source of usage blocks nothing, on real API servers."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from clusterset.model import names
from clusterset.model.rights import VIRTUAL_NODE
from controller_runtime.rights import Right, resolved
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_annotator, start_multi_scheduler, write_configuration
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from multi_scheduler.annotator.program import LOWER_ANNOTATE
from multi_scheduler.annotator.program import UPPER as ANNOTATOR
from multi_scheduler.program import LOWER, LOWER_METRICS_API
from tests import metrics_api, prometheus_api
from tests.clusters.commands.test_commands import command
from tests.clusters.commands.test_inspect import least
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]
NAMESPACE = "shop"
IDLE, BUSY = (20_000, 1024), (62_000, 1024)
FIRST, SECOND = "lower1-node-0", "lower2-node-0"
A, B = "vn-lower1", "vn-lower2"
AGENTS = {
    "agents": [
        {"name": "fit", "weight": 0},
        {"name": "load", "weight": 1, "config": {"policy": "TargetLoadPacking"}},
    ],
}
QUICK = {"intervalSeconds": 1, "window": 1, "maxAgeSeconds": 3}
MEASURED = {
    "lower1": {"usage": {"source": "MetricsAPI", **QUICK}},
    "lower2": {"usage": {"source": "Prometheus", "prometheus": {"service": prometheus_api.SERVICE}, **QUICK}},
}
ANNOTATED = {name: {"usage": {"source": "Annotations", "maxAgeSeconds": 600}} for name in MEASURED}
PROXY = Right("", "services", ("get",), "Prometheus", "proxy", "", ("prometheus:9090",))
ORIGINAL = {"preemptVerb": "", "bindVerb": "", "enableHTTPS": False, "nodeCacheCapable": False}
"""Fields that all entries of kube-safe-scheduler's configuration have."""


@dataclass(slots=True)
class World:
    """Two lower clusters with a node of 64 CPUs each, their sources of usage, and one scheduler."""

    sandbox: Sandbox
    one: metrics_api.MetricsApi
    two: prometheus_api.PrometheusApi
    numbers: itertools.count[int]
    scheduler: Process | None = None

    @property
    def upper(self) -> Cluster:
        """Return the upper cluster."""
        return self.sandbox.upper

    async def schedules(self, *flags: str, **settings: Any) -> str:
        """Start a multi-scheduler in place of the last one; return the address of its metrics."""
        if self.scheduler is not None:
            await self.scheduler.stop()
        address = _address()
        self.scheduler = await start_multi_scheduler(
            self.sandbox, f"--health-addr={address}", *flags, **settings
        )
        return address

    async def submitted(self) -> str:
        """Create a pod for any virtual node; return its name."""
        name = f"pod-{next(self.numbers)}"
        await create(self.upper, NAMESPACE, _pod(name))
        return name

    async def bound_to(self) -> str:
        """Return the node that the scheduler binds a new pod to."""
        name, node = await self.submitted(), ""

        async def is_bound() -> bool:
            nonlocal node
            node = (await get(self.upper, NAMESPACE, "pod", name))["spec"].get("nodeName", "")
            return bool(node)

        await becomes(is_bound, True, what=f"{name} is bound")
        return node


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world() -> AsyncIterator[World]:
    """The clusters with ready virtual nodes."""
    async with Sandbox(lower=2, kwok_nodes=1, bridged=True) as sandbox, contextlib.AsyncExitStack() as stack:
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(sandbox)), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        assert sandbox.bridge is not None
        address = sandbox.bridge.address
        one = await stack.enter_async_context(metrics_api.serving(sandbox.lower[0], address))
        two = await stack.enter_async_context(prometheus_api.serving(sandbox.lower[1], address))
        for node in (A, B):
            await node_ready(sandbox.upper, node)
        await make_namespace(sandbox.upper, NAMESPACE)
        yield World(sandbox, one, two, itertools.count())


def _pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"type": "virtual-kubelet"},
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "busybox:1.36", "resources": {"requests": {"cpu": "100m"}}}
            ],
        },
    }


def _address() -> str:
    (port,) = free_ports(1)
    return f"{LOOPBACK}:{port}"


async def _metric(address: str, name: str) -> dict[str, float]:
    """Return the sums of a program's metric, by cluster."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as answer:
        text = await answer.text()
    found: dict[str, float] = {}
    for cluster, value in re.findall(rf'^{name}{{cluster="([^"]+)".*}} (\S+)$', text, re.MULTILINE):
        found[cluster] = found.get(cluster, 0) + float(value)
    return found


async def _neutral(world: World, address: str, cluster: str) -> None:
    """Bind pods until a metric counts a neutral score of a cluster's node, because its last value is too old."""

    async def is_counted() -> bool:
        await world.bound_to()
        return (await _metric(address, "virtual_node_usage_neutral_total"))[cluster] > 0

    await eventually(is_counted, what=f"neutral scores of {cluster}")


async def test_pods_go_to_the_idle_cluster_and_a_lost_source_is_neutral(world: World) -> None:
    """Nodes at 31 % and at 97 %, one by the metrics API and one by Prometheus; an unknown usage scores between."""
    world.one.nodes, world.two.nodes = {FIRST: BUSY}, {SECOND: IDLE}
    address = await world.schedules(settings=AGENTS, clusters=MEASURED)

    async def failed() -> dict[str, float]:
        return await _metric(address, "virtual_node_usage_source_failed")

    await becomes(failed, {"lower1": 0, "lower2": 0}, what="both sources are read")
    await becomes(world.bound_to, B, what="the idle cluster gets the pod")
    world.two.nodes = None
    await becomes(failed, {"lower1": 0, "lower2": 1}, what="the loss is reported")
    await _neutral(world, address, "lower2")
    assert await world.bound_to() == B, "not known is better than busy"
    world.one.nodes = {FIRST: IDLE}
    await becomes(world.bound_to, A, what="idle is better than not known")
    world.one.nodes = None
    await becomes(failed, {"lower1": 1, "lower2": 1}, what="both are lost")
    assert await world.bound_to() in {A, B}
    world.one.nodes, world.two.nodes = {FIRST: BUSY}, {SECOND: IDLE}
    await becomes(world.bound_to, B, what="the sources are used when they return")


async def test_diagnose_explains_the_choice(world: World) -> None:
    """A row for each agent and node, from the event that the multi-scheduler wrote on the pod."""
    name = await world.submitted()

    async def is_scored() -> bool:
        events = (await get(world.upper, NAMESPACE, "events"))["items"]
        return any(
            one["reason"] == names.EVENT_SCORED and one["involvedObject"]["name"] == name for one in events
        )

    await eventually(is_scored, what="the event")
    words = ("diagnose", "pod", f"{NAMESPACE}/{name}", "--explain")
    _, out = await command(world.upper, *words, "-o", "json")
    found = {(one["agent"], one["node"]): one["score"] for one in json.loads(out)["scores"]}
    assert found.keys() == {("load", A), ("load", B)}
    assert found["load", A] < found["load", B]
    _, out = await command(world.upper, *words)
    assert re.search(rf"^load +{B} +\d+ +1 *$", out, re.MULTILINE)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def annotators(world: World) -> AsyncIterator[dict[str, Process]]:
    """Two replicas of the annotator with the rights of its tables; by the address of their metrics."""
    upper = await least(
        world.upper, resolved(ANNOTATOR, names={VIRTUAL_NODE: [A, B]}, own_namespace="kube-system")
    )
    lower = [
        await least(cluster, [*LOWER, *LOWER_METRICS_API, *LOWER_ANNOTATE, PROXY])
        for cluster in world.sandbox.lower
    ]
    clusters = {
        name: {**found, "kubeconfig": path}
        for (name, found), path in zip(MEASURED.items(), lower, strict=True)
    }
    file = write_configuration(world.sandbox, "annotator.yaml", clusters)
    found = {}
    for number in range(2):
        address = _address()
        found[address] = await start_annotator(
            world.sandbox, f"--kubeconfig={upper}", f"--config={file}", "--leader-elect", "--lower-nodes",
            "--interval=1s", f"--health-addr={address}", name=f"annotator-{number}",
        )  # fmt: skip
    yield found
    for process in found.values():
        await process.stop()


async def _free_cpu(cluster: Cluster, node: str) -> str | None:
    annotations: dict[str, str] = (await get(cluster, "", "node", node))["metadata"].get("annotations") or {}
    return annotations.get("mean-free-cpu")


async def test_annotations_are_a_source_of_usage(world: World, annotators: dict[str, Process]) -> None:
    """Written by one of two replicas; without their source they are removed, and another replica takes over."""
    world.one.nodes, world.two.nodes = {FIRST: IDLE}, {SECOND: BUSY}
    one, two = world.sandbox.lower
    await becomes(lambda: _free_cpu(one, FIRST), "44000", what="free CPU of a lower node")
    await becomes(lambda: _free_cpu(two, SECOND), "2000", what="free CPU of the other lower node")
    await becomes(lambda: _free_cpu(world.upper, A), "44000", what="free CPU of a virtual node")

    async def writers() -> list[str]:
        return [one for one in annotators if await _metric(one, "virtual_node_annotator_writes_total")]

    (leader,) = await writers()
    address = await world.schedules(settings=AGENTS, clusters=ANNOTATED)
    await becomes(world.bound_to, A, what="the idle cluster gets the pod")
    world.one.nodes = None
    await becomes(lambda: _free_cpu(one, FIRST), None, what="the usage is removed when its source is lost")
    await _neutral(world, address, "lower1")
    assert await world.bound_to() == A, "not known is better than busy"

    await annotators.pop(leader).stop()
    world.one.nodes, world.two.nodes = {FIRST: BUSY}, {SECOND: IDLE}
    await becomes(world.bound_to, B, what="another replica writes, and the annotations are used again")
    assert await writers() == list(annotators)


async def test_a_scheduler_configured_for_kube_safe_scheduler_uses_its_paths(
    world: World, annotators: dict[str, Process]
) -> None:
    """A stock scheduler with the original's entries: rejected by risk, ranked by load, and the reason in its event."""
    assert annotators
    await world.schedules(
        "--safe-scheduler-routes",
        settings=AGENTS,
        clusters=ANNOTATED,
        extenders=[
            {
                **ORIGINAL,
                "filterVerb": "predicates/safe-overload",
                "prioritizeVerb": "priorities/safe-overload",
                "weight": 1,
            },
            {**ORIGINAL, "filterVerb": "", "prioritizeVerb": "priorities/safe-balance", "weight": 10},
        ],
    )
    world.one.nodes, world.two.nodes = {FIRST: (4_000, 1024)}, {SECOND: (40_000, 1024)}
    await becomes(lambda: _free_cpu(world.upper, A), "60000", what="free CPU of a virtual node")
    await becomes(lambda: _free_cpu(world.upper, B), "24000", what="free CPU of the other virtual node")
    assert [await world.bound_to() for _ in range(3)] == [A] * 3, "the less loaded node is preferred"
    world.one.nodes = {FIRST: BUSY}
    await becomes(lambda: _free_cpu(world.upper, A), "2000", what="free CPU of the virtual node")
    assert [await world.bound_to() for _ in range(3)] == [B] * 3, "a node at risk is rejected"
    world.two.nodes = {SECOND: BUSY}
    await becomes(lambda: _free_cpu(world.upper, B), "2000", what="both virtual nodes are at risk")
    name = await world.submitted()

    async def message() -> str:
        status = (await get(world.upper, NAMESPACE, "pod", name))["status"]
        return " ".join(one.get("message", "") for one in status.get("conditions", ()))

    async def is_told() -> bool:
        return "cpu would exceed 90% with a probability of 100%" in await message()

    await eventually(is_told, what="the pod's condition has the reason")
