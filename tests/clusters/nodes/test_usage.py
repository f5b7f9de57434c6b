"""Usage and pressure of a real node: from its kubelet, and from its kernel while a pod takes all CPUs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from clusterset.model import names
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import NotFound
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_annotator, start_descheduler, start_multi_scheduler
from multi_scheduler.program import LOWER_KUBELETS
from multi_scheduler.usage import Sample
from multi_scheduler.usage_sources import MetricsApi, Resource, Source, Summary
from tests.clusters.commands.test_inspect import least
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.serving import served
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready
from tests.workloads import deployment

pytestmark = [pytest.mark.e2e, pytest.mark.real_node, pytest.mark.timeout(480)]
NAMESPACE = "pressed"
UPPER_NODE = "upper-node-0"
SIMULATED_NODES = ["lower2-node-0", "lower2-node-1"]
VIRTUAL = {"type": "virtual-kubelet"}
FIGURES = ("cpu", "memory", "cpuPressure", "memoryPressure", "ioPressure")
IDLE = {"cpu": 1.0, "memory": 1e9, "cpuPressure": 0.0, "memoryPressure": 0.0, "ioPressure": 0.0}
PRESSED = {**IDLE, "memoryPressure": 60.0}
THRESHOLD = 50.0
STRESS = f"for i in $(seq {2 * (os.cpu_count() or 1)}); do while :; do :; done & done; wait"
_CGROUPS = Path("/sys/fs/cgroup")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters() -> AsyncIterator[Sandbox]:
    """A lower cluster with a real node, one with simulated nodes, and a simulated node of the upper cluster."""
    async with Sandbox(lower=2, real_node=True, kwok_nodes=2, upper_kwok_nodes=1) as running:
        yield running


async def test_kubelets_report_usage_and_pressure(clusters: Sandbox) -> None:
    """Plausible values by both endpoints; pressure on machines with cgroup v2, without which kubelets report zeros."""
    lower, node = clusters.lower[0], clusters.real_node
    assert node is not None
    config = await kubeconfig.load(await least(lower, LOWER_KUBELETS), in_cluster=False)
    has_psi = Path("/proc/pressure/cpu").exists() and (_CGROUPS / "cgroup.controllers").exists()
    async with Client(config, cluster="lower1") as client:
        for source, reports_pressure in ((Summary(client), True), (Resource(client), False)):
            sample = await _measured(source, node.name)
            assert 1 < (sample.cpu or 0) < 1_000_000
            assert 10 * 1024**2 < (sample.memory or 0) < 10 * 1024**4
            assert (sample.pressure is not None) == (reports_pressure and has_psi)
        with pytest.raises(NotFound):  # discovery is open to all accounts, and no metrics API is installed
            await _measured(MetricsApi(client), node.name)


async def _measured(source: Source, node: str) -> Sample:
    found: dict[str, Sample] = {}

    async def is_measured() -> bool:
        found.update({name: one async for name, one in source.read({node: 2000.0}, pause=0)})
        return node in found and bool(found[node].cpu)

    if isinstance(source, MetricsApi):
        await is_measured()
    else:
        await eventually(is_measured, what="the kubelet has measured its node")
    return found[node]


class Kernel:
    """The kernel's figures of a real node: CPUs in use on this machine, and PSI of the cgroup of the node's pods.

    Kubelets report PSI only on machines with cgroup v2 alone. The kernel also measures it in a v2 hierarchy beside v1.
    """

    def __init__(self, cgroup: str) -> None:
        unified = _CGROUPS / "unified"
        self._cgroup = (unified if unified.exists() else _CGROUPS) / cgroup
        self._before = (0.0, 0.0, dict.fromkeys(FIGURES, 0.0))
        self._found: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """Return the figures over at least one second."""
        if time.monotonic() < self._before[0] + 1:
            return self._found
        columns = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(columns) - columns[3] - columns[4]) / 100
        totals = {
            "cpuPressure": self._waited("cpu.pressure", "some"),
            "memoryPressure": self._waited("memory.pressure", "full"),
            "ioPressure": self._waited("io.pressure", "full"),
        }
        now = time.monotonic()
        then, busy_before, before = self._before
        self._before = now, busy, totals
        shares = {name: 100 * (total - before[name]) / (now - then) for name, total in totals.items()}
        self._found = {"cpu": (busy - busy_before) / (now - then), "memory": 1e9, **shares}
        return self._found

    def _waited(self, file: str, kind: str) -> float:
        """Return the seconds that some or all processes waited."""
        lines = (self._cgroup / file).read_text().splitlines()
        return next(int(line.rpartition("=")[2]) / 1e6 for line in lines if line.startswith(kind))


class Prometheus:
    """Answers instant queries with figures of nodes, by lower cluster.

    Attributes:
        sources: nodes and their source: the kernel, fixed figures, or None, for which every query fails.
        pressed: number of complete samples of each cluster with pressure on CPU, since the last reset.
    """

    def __init__(self) -> None:
        self.sources: dict[str, tuple[list[str], Kernel | Mapping[str, float] | None]] = {}
        self.pressed: dict[str, int] = {}
        self._last: dict[str, Mapping[str, float]] = {}

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a query; the first query of a round takes the sample for the whole round."""
        cluster, name = request.match_info["cluster"], request.query["query"]
        nodes, source = self.sources[cluster]
        if source is None:
            return web.json_response({"status": "error"}, status=503)
        if name == FIGURES[0]:
            self._last[cluster] = source.read() if isinstance(source, Kernel) else source
        found = self._last.get(cluster, IDLE)
        if name == FIGURES[-1] and found["cpuPressure"] >= THRESHOLD:
            self.pressed[cluster] = self.pressed.get(cluster, 0) + 1
        value = [time.time(), str(found[name])]
        result = [{"metric": {"node": node}, "value": value} for node in nodes]
        return web.json_response({"status": "success", "data": {"result": result}})

    def usage(self, address: str, cluster: str) -> dict[str, Any]:
        """Return the configuration of a cluster's usage."""
        queries = {name: name for name in FIGURES}
        return {
            "source": "Prometheus", "intervalSeconds": 2, "maxAgeSeconds": 5, "pressure": {"cpu": THRESHOLD},
            "prometheus": {"url": f"http://{address}/{cluster}", **queries},
        }  # fmt: skip


@contextlib.asynccontextmanager
async def _serving(prometheus: Prometheus) -> AsyncIterator[str]:
    async with served(web.get("/{cluster}/api/v1/query", prometheus.answer)) as port:
        yield f"{LOOPBACK}:{port}"


class Pods:
    """Creates pods for any virtual node."""

    def __init__(self, upper: Cluster) -> None:
        self._upper = upper
        self._numbers = itertools.count()
        self.last = ""
        """Name of the last pod."""

    async def bound_anywhere(self) -> str:
        """Return the node that the scheduler binds a new pod to, which may be the upper cluster's own node."""
        return await self.bound_to({})

    async def bound_to(self, selector: Mapping[str, str] = VIRTUAL) -> str:
        """Return the node that the scheduler binds a new pod to."""
        name, node = f"pod-{next(self._numbers)}", ""
        self.last = name
        body = pod(name, "sleep 1000", nodeSelector=selector)
        await create(self._upper, NAMESPACE, body)

        async def is_bound() -> bool:
            nonlocal node
            node = (await get(self._upper, NAMESPACE, "pod", name))["spec"].get("nodeName", "")
            return bool(node)

        await eventually(is_bound, what=f"{name} is bound")
        return node


async def _prefers_its_node(sandbox: Sandbox, name: str) -> bool:
    """Report whether a pod runs on the node of the simulated cluster that the multi-scheduler has passed down."""
    above = await get(sandbox.upper, NAMESPACE, "pod", name)
    below = await get(sandbox.lower[1], NAMESPACE, "pod", name)
    chosen = above["metadata"]["annotations"][names.ANNOTATION_PREFERRED_NODE]
    affinity = below["spec"]["affinity"]["nodeAffinity"]
    (preferred,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    (field,) = preferred["preference"]["matchFields"]
    return bool(below["spec"].get("nodeName") == chosen and field["values"] == [chosen])


async def _places(upper: Cluster, app: str) -> list[str]:
    """Return the nodes of an application's running pods."""
    found = (await get(upper, NAMESPACE, "pods", labels=f"app={app}"))["items"]
    return sorted(one["spec"]["nodeName"] for one in found if one["status"]["phase"] == "Running")


@pytest.mark.skipif(not Path("/proc/pressure/cpu").exists(), reason="the kernel reports no pressure (PSI)")
async def test_pods_leave_a_real_node_under_pressure(clusters: Sandbox) -> None:
    """A pod takes all CPUs of a real node: new pods go elsewhere, and the descheduler moves one of two pods."""
    sandbox, upper, node = clusters, clusters.upper, clusters.real_node
    assert node is not None
    file = sandbox.directory / "virtual-node.yaml"
    file.write_text(json.dumps(configuration(sandbox)), encoding="utf-8")
    await sandbox.start_virtual_node("--config", str(file))
    await node_ready(upper, REAL)
    await node_ready(upper, SIMULATED)
    await make_namespace(upper, NAMESPACE)
    prometheus, pods = Prometheus(), Pods(upper)
    kernel = Kernel(node.cgroup)
    prometheus.sources = {
        "lower1": ([node.name], kernel),
        "lower2": (SIMULATED_NODES, None),
        "upper": ([UPPER_NODE], None),
    }
    async with _serving(prometheus) as address:
        await start_multi_scheduler(
            sandbox,
            bind=True,
            settings={
                "agents": [{"name": "fit", "weight": 0, "config": {"passNode": True}}, {"name": "pressure"}],
                "upperUsage": prometheus.usage(address, "upper"),
            },
            clusters={name: {"usage": prometheus.usage(address, name)} for name in ("lower1", "lower2")},
        )
        await becomes(pods.bound_to, REAL, what="no pressure is better than an unknown one")
        web_pod = pod("web", "sleep 1000", nodeSelector=VIRTUAL)
        await create(upper, NAMESPACE, deployment(web_pod, replicas=2))
        await becomes(lambda: _places(upper, "web"), [REAL, REAL], what="both pods run on the real node")

        await create(upper, NAMESPACE, pod("stress", STRESS))
        await ready(upper, NAMESPACE, "stress")
        prometheus.pressed.clear()

        async def two_samples() -> bool:
            return prometheus.pressed.get("lower1", 0) >= 2

        await eventually(two_samples, what="two samples of the kernel's pressure")
        assert await pods.bound_to() == SIMULATED
        await becomes(
            lambda: _prefers_its_node(sandbox, pods.last), True, what="the lower node is passed down"
        )

        prometheus.sources |= {"lower1": ([node.name], None), "lower2": (SIMULATED_NODES, PRESSED)}
        await becomes(pods.bound_to, REAL, what="unknown is better than pressed")
        prometheus.sources |= {"lower1": ([node.name], kernel), "lower2": (SIMULATED_NODES, IDLE)}
        await becomes(pods.bound_to, SIMULATED, what="the source is used when it returns")

        prometheus.sources |= {"lower2": (SIMULATED_NODES, PRESSED), "upper": ([UPPER_NODE], IDLE)}
        await becomes(
            pods.bound_anywhere, UPPER_NODE, what="an idle real node is better than pressed clusters"
        )
        prometheus.sources |= {"lower2": (SIMULATED_NODES, IDLE), "upper": ([UPPER_NODE], PRESSED)}
        await becomes(pods.bound_anywhere, SIMULATED, what="a pressed real node is avoided")

        await _descheduler_moves_one(sandbox)
        await upper.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/stress")
        prometheus.sources |= {"lower2": (SIMULATED_NODES, None)}
        await becomes(pods.bound_to, REAL, what="pressure ends with its cause")


async def _descheduler_moves_one(sandbox: Sandbox) -> None:
    """Make one pass of the descheduler when the annotator has annotated the virtual nodes."""
    upper = sandbox.upper
    await start_annotator(sandbox, "--interval=1s")

    async def annotated() -> list[bool]:
        nodes = [await get(upper, "", "node", name) for name in (REAL, SIMULATED)]
        found = [one["metadata"]["annotations"][names.ANNOTATION_PRESSURE] for one in nodes]
        return [float(text) > 0.9 for text in found]

    await becomes(annotated, [True, False], what="the virtual nodes have their load in annotations")
    policy = sandbox.directory / "policy.yaml"
    policy.write_text(
        """
        apiVersion: descheduler/v1alpha2
        kind: DeschedulerPolicy
        profiles:
        - name: relieve
          pluginConfig:
          - name: Pressure
            args: {podsPerPass: 1}
          plugins:
            balance:
              enabled: [Pressure]
        """,
        encoding="utf-8",
    )
    one_pass = ("--descheduling-interval=0", "--leader-elect=false")
    await start_descheduler(sandbox, f"--policy-config-file={policy}", *one_pass)
    await becomes(lambda: _places(upper, "web"), [REAL, SIMULATED], what="one of the two pods is moved")
