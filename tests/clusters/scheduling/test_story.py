"""The scheduling components together: real scheduler, real API servers, simulated nodes.

Two lower clusters: A has three nodes, each nearly full, B one empty node. A Deployment's pods each need more
than any node of A has left, though A's sum has room.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_descheduler, start_multi_scheduler, start_webhook
from hack.sandbox.nodes.kwok import kwok_node
from hack.sandbox.process import Process
from tests import workloads
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, node_ready, own_namespace, ready
from tests.workloads import kwok_pod

pytestmark = pytest.mark.e2e
A, B = "vn-lower1", "vn-lower2"
ADOPTING = {name: {"namespaces": {"adopt": True}} for name in ("lower1", "lower2")}
"""Configuration of the virtual node: pods may use the namespaces that the tests make in lower clusters."""
REPLICAS = 3


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Both clusters as the story has them, a virtual-node process and the webhook."""
    async with simulated() as running:
        full, empty = running.lower
        for cluster in (full, empty):
            await cluster.kubectl("delete", "node", "--all")
        await full.apply(*(kwok_node(f"a-{number}", cpu="4") for number in range(3)))
        await empty.apply(
            kwok_node("b-0", cpu="16"),
            kwok_node(
                "b-gpu",
                cpu="1",
                labels={"gpu": "yes"},
                taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
            ),
        )
        await full.apply(*(filler(f"filler-{number}", f"a-{number}") for number in range(3)))
        for number in range(3):
            await node_ready(full, f"a-{number}")
            await ready(full, "default", f"filler-{number}")
        for node in ("b-0", "b-gpu"):
            await node_ready(empty, node)
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(running, adopt=True)), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for node in (A, B):
            await node_ready(running.upper, node)
        await start_webhook(running)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def descheduler(sandbox: Sandbox) -> AsyncIterator[Process]:
    """Run the descheduler with short times."""
    process = await start_descheduler(
        sandbox, "--unschedulable-threshold=3s", "--stale-after=10s", "--move-running-after=10s", "--heal-after=5s", "--backoff=1s",
        "--stale-pods-per-second=20",
    )  # fmt: skip
    yield process
    await process.stop()


@pytest.fixture
def upper(sandbox: Sandbox) -> Cluster:
    """The cluster of the users."""
    return sandbox.upper


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(sandbox: Sandbox, upper: Cluster) -> AsyncIterator[str]:
    """A namespace for the test."""
    async with own_namespace(upper, *sandbox.lower) as name:
        yield name


def filler(name: str, node: str) -> dict[str, Any]:
    """Return a pod of the lower cluster's own that leaves one core of four."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "3"}}}],
        },
    }


def deployment(
    name: str, *, cpu: str, replicas: int = REPLICAS, prefer: str = "", **spec: Any
) -> dict[str, Any]:
    """Return a labelled Deployment; ``prefer`` names the virtual node that the upper scheduler prefers."""
    if prefer:
        preference = {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [prefer]}]
        }
        affinity = {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": preference}]
        }
        spec["affinity"] = {"nodeAffinity": affinity}
    made = kwok_pod(name, cpu=cpu)
    made["metadata"]["labels"]["virtual-pod"] = "true"
    made["spec"] = {**made["spec"], "tolerations": [], **spec}
    return workloads.deployment(made, replicas=replicas)


async def homes(upper: Cluster, namespace: str) -> list[str]:
    """Return the nodes of the pods that are Running and not ending."""
    found = (await get(upper, namespace, "pods"))["items"]
    return sorted(
        pod["spec"].get("nodeName", "")
        for pod in found
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    )


async def test_the_descheduler_moves_pods_that_cluster_a_cannot_schedule(
    sandbox: Sandbox, upper: Cluster, namespace, descheduler
):
    """(a) Without the multi-scheduler, pods are bound to A because of its sum, are unschedulable there, and move to B."""
    await create(upper, namespace, deployment("large", cpu="2", prefer=A))

    async def bound_to_a() -> bool:
        done = await upper.kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].message}")
        return f"to {A}" in done.stdout

    await eventually(bound_to_a, what="the upper scheduler believes A's sum")

    async def all_at_b() -> bool:
        return await homes(upper, namespace) == [B] * REPLICAS

    await eventually(all_at_b, what="every replica runs at B")
    events = await upper.kubectl("-n", namespace, "get", "events")
    assert "Rescheduled" in events.stdout
    lower_pods = (await get(sandbox.lower[1], namespace, "pods"))["items"]
    assert sorted(pod["spec"]["nodeName"] for pod in lower_pods) == ["b-0"] * REPLICAS


async def test_the_multi_scheduler_binds_them_to_b_at_once(sandbox: Sandbox, upper: Cluster, namespace):
    """(b) No pod is ever bound to A."""
    await start_multi_scheduler(sandbox, clusters=ADOPTING)
    await create(upper, namespace, deployment("large", cpu="2", prefer=A))

    async def all_at_b() -> bool:
        return await homes(upper, namespace) == [B] * REPLICAS

    await eventually(all_at_b, what="every replica runs at B")
    done = await upper.kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].message}")
    assert f"to {A}" not in done.stdout
    assert "Rescheduled" not in (await upper.kubectl("-n", namespace, "get", "events")).stdout


async def test_an_event_has_the_answer_of_each_agent(upper: Cluster, namespace):
    """Scores where both clusters have room, the reason where one was rejected."""
    await create(upper, namespace, deployment("small", cpu="500m", replicas=1))
    await create(upper, namespace, deployment("large", cpu="2", replicas=1))

    async def messages() -> list[str]:
        events = (await get(upper, namespace, "events"))["items"]
        return [one["message"] for one in events if one["reason"] == "NodeScored"]

    async def is_reported() -> bool:
        return len(await messages()) == 2

    await eventually(is_reported, what="an event for each pod")
    large, small = sorted(await messages(), key=len, reverse=True)
    assert large == (
        f"Bound to {B}. Agent fit: rejected: {A} (lower cluster lower1: 0/3 nodes are available: "
        "3 Insufficient cpu). Only one node was left, so no agent scored it"
    )
    assert re.fullmatch(rf"Bound to ({A}|{B}). Agent fit: {A} \d+, {B} \d+ \(weight 1\)", small)


async def test_a_pod_that_fits_nowhere_has_an_event_with_numbers(upper: Cluster, namespace):
    """Kubectl describe shows kube-scheduler's message about the lower nodes."""
    selector = {"kubernetes.io/hostname": A}
    await create(upper, namespace, deployment("large", cpu="2", replicas=1, nodeSelector=selector))

    async def is_reported() -> bool:
        done = await upper.kubectl("-n", namespace, "describe", "pods")
        return (
            "0/3 nodes are available: 3 Insufficient cpu" in done.stdout and "FailedScheduling" in done.stdout
        )

    await eventually(is_reported, what="the event counts the lower nodes")
    assert await homes(upper, namespace) == []


async def test_a_lower_quota_directs_pods_to_the_other_cluster_at_once(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """Each would fit on a node of A, but A's quota refuses it: no pod is ever bound there, and the event has the reason."""
    full = sandbox.lower[0]
    await full.kubectl("create", "namespace", namespace)
    await full.kubectl("-n", namespace, "create", "quota", "tight", "--hard=pods=0")
    probe = {
        "metadata": {"name": "probe", "namespace": namespace, "uid": "probe"},
        "spec": {"containers": []},
    }

    async def known() -> bool:
        answer = await _ask(sandbox, "filter", {"Pod": probe, "NodeNames": [A]})
        return "exceeded quota: tight" in answer["FailedAndUnresolvableNodes"].get(A, "")

    await eventually(known, what="the extender knows the quota")
    await create(upper, namespace, deployment("small", cpu="500m", prefer=A))

    async def at_home() -> list[str]:
        return await homes(upper, namespace)

    await becomes(at_home, [B] * REPLICAS, what="every replica runs at B")
    done = await upper.kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].message}")
    assert f"to {A}" not in done.stdout
    selector = {"kubernetes.io/hostname": A}
    await create(upper, namespace, deployment("tied", cpu="500m", replicas=1, nodeSelector=selector))

    async def is_reported() -> bool:
        done = await upper.kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].message}")
        return "exceeded quota: tight, requested: pods=1, used: pods=0, limited: pods=0" in done.stdout

    await eventually(is_reported, what="the event names the quota")


async def _ask(sandbox: Sandbox, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call the extender as the scheduler does."""
    process = next(one for one in sandbox.processes if one.name == "multi-scheduler" and one.running)
    port = next(word for word in process.argv if word.startswith("--port=")).removeprefix("--port=")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/{verb}", json=arguments) as answer,
    ):
        found: dict[str, Any] = await answer.json()
        return found


async def test_a_burst_is_not_overcommitted(sandbox: Sandbox, upper: Cluster, namespace):
    """Twenty pods at once for room for ten: ten run, none is bound that its cluster cannot run."""
    await create(upper, namespace, deployment("burst", cpu="1", replicas=30))

    async def settled() -> bool:
        return len(await homes(upper, namespace)) >= 3 + 16

    await eventually(settled, what="all the room is used")
    await asyncio.sleep(3)

    async def bound() -> list[str]:
        pods = (await get(upper, namespace, "pods"))["items"]
        return [pod["status"]["phase"] for pod in pods if pod["spec"].get("nodeName")]

    # A pod that was bound although its cluster has no room would stay Pending.
    await becomes(bound, ["Running"] * (3 + 16), what="every pod that is bound runs")


async def test_the_cluster_selector_selects_the_real_node(sandbox: Sandbox, upper: Cluster, namespace):
    """(c) nodeSelector and tolerations of the pod lead through the webhook to the right lower node."""
    await create(
        upper,
        namespace,
        deployment(
            "gpu",
            cpu="500m",
            replicas=1,
            nodeSelector={"gpu": "yes"},
            tolerations=[{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
        ),
    )

    async def runs() -> bool:
        return await homes(upper, namespace) == [B]

    await eventually(runs, what="the pod runs at B")
    lower_pods = (await get(sandbox.lower[1], namespace, "pods"))["items"]
    assert [pod["spec"]["nodeName"] for pod in lower_pods] == ["b-gpu"]
    upper_pods = (await get(upper, namespace, "pods"))["items"][0]
    assert "nodeSelector" not in upper_pods["spec"]
    assert json.loads(upper_pods["metadata"]["annotations"]["clusterSelector"])["nodeSelector"] == {
        "gpu": "yes"
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def binding(sandbox: Sandbox) -> Process:
    """Restart the multi-scheduler as the binder of pods."""
    for process in sandbox.processes:
        if process.name == "multi-scheduler" and process.running:
            await process.stop()
    return await start_multi_scheduler(sandbox, bind=True, clusters=ADOPTING)


async def test_the_extender_binds_pods_if_configured(upper: Cluster, namespace, binding: Process):
    """bindVerb: the pods run, and the extender bound each of them."""
    await create(upper, namespace, deployment("bound", cpu="500m"))

    async def run() -> int:
        return len(await homes(upper, namespace))

    await becomes(run, REPLICAS, what="every replica runs")
    port = next(word for word in binding.argv if word.startswith("--port=")).removeprefix("--port=")
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        metrics = await answer.text()
    assert f'virtual_node_extender_calls_total{{outcome="answered",verb="bind"}} {REPLICAS}.0' in metrics


def _classified(name: str, priority_class: str, *, cpu: str) -> dict[str, Any]:
    pod = {"labels": {"virtual-pod": "true"}, "name": name}
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": pod,
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "priorityClassName": priority_class,
            "nodeSelector": {"kubernetes.io/hostname": A},
            "containers": [container],
        },
    }


async def test_victims_are_selected_only_where_their_end_makes_room(
    upper: Cluster, namespace, binding: Process
):
    """preemptVerb: two small pods on two lower nodes make no room for a large pod, but one of them does for a small pod."""
    low, high = f"low-{namespace}", f"high-{namespace}"
    for name, value in ((low, 1), (high, 1000)):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await upper.apply({**kind, "value": value})
    await create(upper, namespace, *(_classified(f"low-{number}", low, cpu="900m") for number in range(3)))

    async def run() -> int:
        return len(await homes(upper, namespace))

    await becomes(run, 3, what="one small pod on each of A's nodes")
    # By the sum, 0.3 cores and two victims' 1.8 are enough.
    await create(upper, namespace, _classified("large", high, cpu="1500m"))

    async def refused() -> bool:
        done = await upper.kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].message}")
        return "preemption" in done.stdout

    await eventually(refused, what="the scheduler has tried to preempt")
    await asyncio.sleep(3)
    assert await run() == 3
    await upper.kubectl("-n", namespace, "delete", "pod", "large")
    await create(upper, namespace, _classified("small", high, cpu="1"))

    async def names() -> list[str]:
        found = (await get(upper, namespace, "pods"))["items"]
        return sorted(
            pod["metadata"]["name"].partition("-")[0] for pod in found if pod["status"]["phase"] == "Running"
        )

    await becomes(names, ["low", "low", "small"], what="it runs in the place of one of the others")


async def test_a_lost_cluster_is_left_and_filled_again(
    sandbox: Sandbox, upper: Cluster, namespace, descheduler
):
    """(d) B is lost, and its pods move to A if they fit. When B is back, no pod runs twice, and B gets pods again."""
    lost = sandbox.lower[1]
    await create(upper, namespace, deployment("small", cpu="500m", replicas=4, prefer=B))

    async def at_b() -> bool:
        return await homes(upper, namespace) == [B] * 4

    await eventually(at_b, what="all run at B first")
    await lost.apiserver.kill()

    async def at_a() -> bool:
        return await homes(upper, namespace) == [A] * 4

    await eventually(at_a, what="all have moved to A")
    await lost.restore()

    async def clean() -> bool:
        lower_pods = (await get(lost, namespace, "pods"))["items"]
        status = (await get(upper, "", "node", B))["status"]
        ready = next(one["status"] for one in status["conditions"] if one["type"] == "Ready")
        upper_pods = (await get(upper, namespace, "pods"))["items"]
        return (
            ready == "True" and not lower_pods and [pod["spec"]["nodeName"] for pod in upper_pods] == [A] * 4
        )

    await eventually(clean, what="B is Ready and rid of the pods that have moved, above and below")
    await upper.kubectl("-n", namespace, "scale", "deployment/small", "--replicas=8")

    async def filled() -> bool:
        return len(await homes(upper, namespace)) == 8 and B in await homes(upper, namespace)

    await eventually(filled, what="B takes pods again")
