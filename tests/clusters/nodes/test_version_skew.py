"""Upper and lower clusters of the current Kubernetes release, each with one of the three releases before: the same features work.

Only API servers differ in version, and with it in what they know, keep and refuse: an older one drops fields of a newer
one. A cluster is upgraded from each version to the next under a running virtual node, as users do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds.programs import KUBERNETES_VERSION, OTHER_KUBERNETES
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from tests.clusters.pods.test_streams import SCRIPT, end, first_port, spawn
from tests.clusters.virtual_nodes import pod
from tests.waiting import PATIENCE, becomes, eventually, get, make_namespace, node_ready
from tests.workloads import deployment

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
OURS = int(KUBERNETES_VERSION.split(".")[1])
OLDER = [int(minor.removeprefix("1.")) for minor in OTHER_KUBERNETES]
PAIRS = [*((OURS, minor) for minor in OLDER), *((minor, OURS) for minor in OLDER)]
"""Minor versions of the upper and the lower cluster, in an order in which versions only rise."""
RETRIES = "workqueue_retries_total{"
RESYNC = 0.5
"""Seconds between two comparisons of every pod, so that repeated writes show at once."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An upper cluster, a lower one, and a Deployment that runs in the lower one."""

    sandbox: Sandbox
    upper: Cluster
    lower: Cluster
    upper_minor: int
    lower_minor: int
    process: Process
    metrics: str
    """URL of the virtual node's metrics."""

    @property
    def node(self) -> str:
        """Return the virtual node's name."""
        return f"vn-{self.lower.name}"

    @property
    def namespace(self) -> str:
        """Return the Deployment's namespace, unique for each pair because clusters are shared."""
        return f"{self.upper_minor}-over-{self.lower_minor}"


@dataclass(frozen=True, slots=True)
class VirtualNode:
    """A running virtual node, and the URL of its metrics."""

    process: Process
    metrics: str


@dataclass(frozen=True, slots=True)
class Clusters:
    """The clusters of all pairs. ``lower[0]`` has the real node; ``lower[1]`` is the upper cluster of older versions."""

    sandbox: Sandbox
    virtual_nodes: dict[str, VirtualNode]
    """By upper cluster."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters() -> AsyncIterator[Clusters]:
    """Three control planes and a real node; two of them begin with the oldest version."""
    versions = dict.fromkeys(("lower1", "lower2"), tuple(OTHER_KUBERNETES))
    async with Sandbox(lower=2, real_node=True, kwok_nodes=0, versions=versions) as sandbox:
        yield Clusters(sandbox, {})


@pytest_asyncio.fixture(
    scope="module", loop_scope="session", params=PAIRS, ids=lambda pair: "1.{}-over-1.{}".format(*pair)
)
async def pair(request: pytest.FixtureRequest, clusters: Clusters) -> AsyncIterator[Pair]:
    """Two clusters, and a Deployment that is complete: the upper controllers count its pod as available."""
    upper_minor, lower_minor = request.param
    sandbox = clusters.sandbox
    lower, older = sandbox.lower
    upper = sandbox.upper if upper_minor == OURS else older
    for cluster, minor in ((upper, f"1.{upper_minor}"), (lower, f"1.{lower_minor}")):
        if cluster.minor != minor:
            await cluster.upgrade(minor)
    if upper.name not in clusters.virtual_nodes:
        for other in clusters.virtual_nodes.values():
            await other.process.stop()
        clusters.virtual_nodes[upper.name] = await _virtual_node(sandbox, upper, lower)
    virtual_node = clusters.virtual_nodes[upper.name]
    found = Pair(sandbox, upper, lower, upper_minor, lower_minor, virtual_node.process, virtual_node.metrics)
    await node_ready(upper, found.node)
    await make_namespace(upper, found.namespace)
    limits = {"requests": {"cpu": "50m"}, "limits": {"memory": "64Mi"}}
    made = pod("web", SCRIPT, node=found.node, container={"stdin": True, "resources": limits})
    body = json.dumps(deployment(made, replicas=1))
    await upper.kubectl("-n", found.namespace, "create", "-f", "-", input=body)
    await upper.kubectl(
        "-n", found.namespace, "rollout", "status", "deployment/web", f"--timeout={PATIENCE:.0f}s"
    )
    yield found


async def _virtual_node(sandbox: Sandbox, upper: Cluster, lower: Cluster) -> VirtualNode:
    """Start a virtual node of an upper cluster."""
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "kubeconfig": str(upper.kubeconfig),
        "kubelet": {"port": 0, "nodeIp": LOOPBACK},
        "fullResyncPeriod": RESYNC,
        "metricsAddress": address,
        "clusters": [
            {"name": lower.name, "kubeconfig": str(lower.kubeconfig), "nodeName": f"vn-{lower.name}"}
        ],
    }
    file = sandbox.directory / f"{upper.name}-{lower.name}.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    process = await sandbox.start_process(
        file.stem,
        [sys.executable, "-m", "virtual_node", "--config", str(file)],
        env={"VKUBELET_POD_IP": LOOPBACK},
    )
    return VirtualNode(process, f"http://{address}/metrics")


async def web(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Return the Deployment's pod."""
    found: list[dict[str, Any]] = (await get(cluster, namespace, "pods", labels="app=web"))["items"]
    (only,) = found
    return only


async def test_status_is_complete(pair: Pair) -> None:
    """Conditions, QoS class and observedGeneration equal the lower ones; the node has the lower version after an upgrade, too."""
    versions = [(await cluster.api.read("/version"))["minor"] for cluster in (pair.upper, pair.lower)]
    assert versions == [str(pair.upper_minor), str(pair.lower_minor)]

    async def kubelet_minor() -> str:
        version: str = (await get(pair.upper, "", "node", pair.node))["status"]["nodeInfo"]["kubeletVersion"]
        return version.split(".")[1]

    await becomes(kubelet_minor, str(pair.lower_minor), what="the lower version on the virtual node")

    def summary(found: dict[str, Any]) -> dict[str, Any]:
        status = found["status"]
        (container,) = status["containerStatuses"]
        return {
            "phase": status["phase"],
            "ip": status["podIP"],
            "qosClass": status["qosClass"],
            "conditions": {
                one["type"]: (one["status"], one["lastTransitionTime"]) for one in status["conditions"]
            },
            "container": [
                container["ready"],
                container["state"],
                container["imageID"],
                container["restartCount"],
            ],
        }

    lower_pod = await web(pair.lower, pair.namespace)
    assert summary(lower_pod)["qosClass"] == "Burstable"
    assert {kind: so for kind, (so, _) in summary(lower_pod)["conditions"].items()}["Ready"] == "True"

    async def upper_summary() -> dict[str, Any]:
        return summary(await web(pair.upper, pair.namespace))

    await becomes(upper_summary, summary(lower_pod), what="the lower status in the upper cluster")

    found = await web(pair.upper, pair.namespace)
    conditions = {one["type"]: one for one in found["status"]["conditions"]}
    generation = found["metadata"]["generation"]
    assert found["status"].get("observedGeneration") == generation
    assert conditions["Ready"].get("observedGeneration") == generation


async def test_kubectl_shows_the_pod(pair: Pair) -> None:
    """``kubectl get`` and ``describe`` have the state, the node and the lower events."""
    name = (await web(pair.upper, pair.namespace))["metadata"]["name"]
    shown = await pair.upper.kubectl("-n", pair.namespace, "get", "pod", name, "-o", "wide", "--no-headers")
    assert shown.stdout.split()[:3] == [name, "1/1", "Running"]
    assert pair.node in shown.stdout

    async def described() -> bool:
        description = (await pair.upper.kubectl("-n", pair.namespace, "describe", "pod", name)).stdout
        return all(word in description for word in ("Container started", "Burstable", "ContainersReady"))

    await eventually(described, what="what describe shows")
    assert (await pair.upper.kubectl("describe", "node", pair.node)).stdout


async def test_streams_work(pair: Pair, tmp_path: Path) -> None:
    """Logs, exec, attach, port-forward and cp."""
    name = (await web(pair.upper, pair.namespace))["metadata"]["name"]
    here = ("-n", pair.namespace)

    async def logged() -> bool:
        return "beat 1" in (await pair.upper.kubectl(*here, "logs", name)).stdout

    await eventually(logged, what="the script's first beat")
    for websockets in ("true", "false"):
        done = await pair.upper.kubectl(
            *here, "exec", "-i", name, "--", "sh", "-c", "cat; echo err >&2; exit 42",
            input="typed", check=False, env={"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": websockets},
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (42, "typed")
        assert "err\n" in done.stderr

    attached = await spawn(pair.sandbox, *here, "attach", name, cluster=pair.upper)
    try:
        assert attached.stdout is not None
        line = b""
        while not line.startswith(b"beat"):
            line = await attached.stdout.readline()
            assert line, "attach ended"
    finally:
        await end(attached)

    forwarded = await spawn(pair.sandbox, *here, "port-forward", name, ":8080", cluster=pair.upper)
    try:
        port = await first_port(forwarded)
        async with aiohttp.ClientSession() as session, session.get(f"http://{LOOPBACK}:{port}/") as answer:
            assert await answer.text() == "served\n"
    finally:
        await end(forwarded)

    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(bytes(range(256)) * 1000)
    await pair.upper.kubectl("cp", str(there), f"{pair.namespace}/{name}:/tmp/copied")
    await pair.upper.kubectl("cp", f"{pair.namespace}/{name}:/tmp/copied", str(back))
    assert back.read_bytes() == there.read_bytes()


async def test_resize_works(pair: Pair) -> None:
    """The new size is in force in both clusters, without a restart."""
    name = (await web(pair.upper, pair.namespace))["metadata"]["name"]
    change = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "60m"}}}]}}
    await pair.upper.kubectl(
        *("-n", pair.namespace, "patch", "pod", name, "--subresource=resize", "-p", json.dumps(change))
    )

    async def requested() -> list[str]:
        found = [await web(cluster, pair.namespace) for cluster in (pair.upper, pair.lower)]
        return [one["spec"]["containers"][0]["resources"]["requests"]["cpu"] for one in found]

    async def in_force() -> tuple[str, bool]:
        found = await web(pair.upper, pair.namespace)
        (container,) = found["status"]["containerStatuses"]
        is_observed = found["status"]["observedGeneration"] == found["metadata"]["generation"]
        return container["resources"]["requests"]["cpu"], is_observed

    await becomes(requested, ["60m", "60m"], what="the new size in both clusters")
    await becomes(in_force, ("60m", True), what="the new size in the upper status")
    assert (await web(pair.upper, pair.namespace))["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_fields_that_one_version_does_not_know_do_no_harm(pair: Pair) -> None:
    """A pod with fields of the newer API server runs, keeps its QoS class, and accepts changes."""
    made = pod("new", "sleep 3600", node=pair.node)
    made["spec"]["resources"] = {"requests": {"cpu": "20m", "memory": "16Mi"}}
    if pair.lower_minor >= 35 or pair.upper_minor < 35:
        # Otherwise the older API server below drops them, and the pod needs them; see the next test.
        rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
        made["spec"]["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    await _create(pair, made)
    await pair.upper.kubectl(
        "-n", pair.namespace, "wait", "--for=condition=Ready", "pod/new", f"--timeout={PATIENCE:.0f}s"
    )
    await pair.upper.kubectl("-n", pair.namespace, "label", "pod", "new", "changed=yes")

    async def changed() -> str:
        return str((await get(pair.lower, pair.namespace, "pod", "new"))["metadata"]["labels"]["changed"])

    await becomes(changed, "yes", what="the label in the lower cluster")
    assert (await get(pair.upper, pair.namespace, "pod", "new"))["status"]["qosClass"] == "Burstable"
    assert not await _lost_fields(pair, "new")


async def test_a_pod_does_not_run_without_a_field_that_it_needs(pair: Pair) -> None:
    """The older API server below drops it."""
    if pair.lower_minor >= 35:
        pytest.skip("the lower API server knows all fields that are on by default")
    made = pod("needy", "sleep 3600", node=pair.node)
    field = "spec.containers[main].restartPolicy"
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    made["spec"]["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    await _create(pair, made)

    async def refused() -> bool:
        return field in await _lost_fields(pair, "needy")

    await eventually(refused, what="the event that names the field")
    await pair.upper.kubectl(
        "-n",
        pair.namespace,
        "wait",
        "--for=condition=virtual-node.io/Admitted=False",
        "pod/needy",
        "--timeout=10s",
    )

    async def is_deleted() -> bool:
        pods = (await get(pair.lower, pair.namespace, "pods"))["items"]
        return all(lower["metadata"]["name"] != "needy" for lower in pods)

    await eventually(is_deleted, what="the lower pod without the field is deleted")
    assert (await get(pair.upper, pair.namespace, "pod", "needy"))["status"]["phase"] == "Pending"


async def _create(pair: Pair, body: dict[str, Any]) -> None:
    """Create a pod. kubectl refuses fields that the server does not know; other clients do not, and the server drops them."""
    arguments = ("-n", pair.namespace, "create", "--validate=ignore", "-f", "-")
    await pair.upper.kubectl(*arguments, input=json.dumps(body))


async def _lost_fields(pair: Pair, name: str) -> str:
    """Return the messages of the events about lost fields of a pod."""
    selector = f"--field-selector=reason=FieldsLost,involvedObject.name={name}"
    found = await pair.upper.kubectl(
        "-n", pair.namespace, "get", "events", selector, "-o", "jsonpath={..message}"
    )
    return found.stdout


async def test_nothing_is_written_repeatedly(pair: Pair) -> None:
    """After all of this no pod is patched any more, nothing is retried, and nothing was refused."""

    async def written() -> list[float]:
        patched = [await _pod_patches(cluster) for cluster in (pair.upper, pair.lower)]
        async with aiohttp.ClientSession() as session, session.get(pair.metrics) as answer:
            text = await answer.text()
        retried = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(RETRIES)]
        return [*patched, sum(retried)]

    async def quiet() -> bool:
        before = await written()
        await asyncio.sleep(5 * RESYNC)
        return await written() == before

    await eventually(quiet, what="no pod is patched any more")
    assert "refuses a pod status" not in pair.process.log.read_text(encoding="utf-8")


async def _pod_patches(cluster: Cluster) -> float:
    done = await cluster.kubectl("get", "--raw", "/metrics")
    return sum(
        float(line.split()[-1])
        for line in done.stdout.splitlines()
        if line.startswith("apiserver_request_total{")
        and 'resource="pods"' in line
        and 'verb="PATCH"' in line
    )
