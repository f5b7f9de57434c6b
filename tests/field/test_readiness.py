"""Which backends are ready when the process, or a lower cluster's API server, was away."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from clusterset.model.pod.conditions import condition, is_true
from controller_runtime import resources
from hack.sandbox import Cluster, Sandbox
from tests.clusters.services.client_loop import count, start_client
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.waiting import PATIENCE, becomes, create, eventually, get, node_ready, ready
from tests.workloads import deployment, service

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

_BACKENDS = 40
_AFTER = 5


async def endpoints(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Return the endpoints of Service ``web``."""
    labels = "kubernetes.io/service-name=web"
    items = (await get(cluster, namespace, "endpointslices", labels=labels))["items"]
    return [one for item in items for one in item.get("endpoints") or ()]


async def ready_addresses(cluster: Cluster, namespace: str) -> int:
    """Return the number of endpoints of Service ``web`` that are ready."""
    return sum(bool(one["conditions"].get("ready")) for one in await endpoints(cluster, namespace))


async def mark_pods_not_ready(upper: Cluster, namespace: str) -> None:
    """Do what kube-controller-manager does 40 s after the last heartbeat of a kubelet."""
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    for one in (await get(upper, namespace, "pods"))["items"]:
        path = resources.PODS.path(namespace=namespace, name=one["metadata"]["name"])
        await upper.api.merge(f"{path}/status", patch, strategic=True)


async def test_returning_process_leaves_healthy_backends_ready(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """The upper cluster has marked their pods not ready. The lower pods know better."""
    lower, process = sandbox.lower[1], sandbox.processes[0]
    template = pod("web", "sleep 3600", node=SIMULATED)
    await create(upper, namespace, service({"port": 80}), deployment(template, replicas=_BACKENDS))

    async def below() -> int:
        return await ready_addresses(lower, namespace)

    async def above() -> int:
        return await ready_addresses(upper, namespace)

    await becomes(below, _BACKENDS, what="all backends are ready in the lower cluster")
    await process.kill()
    await mark_pods_not_ready(upper, namespace)
    await becomes(above, 0, what="the upper cluster reports no backend ready")
    lowest, returned = [_BACKENDS], asyncio.Event()

    async def watch() -> None:
        while not returned.is_set():
            lowest.append(await below())
            await asyncio.sleep(0.05)  # without a pause, this would use a whole CPU

    watching = asyncio.create_task(watch())
    try:
        await process.start()
        await becomes(above, _BACKENDS, what="the upper statuses are repaired")
        await asyncio.sleep(1)
    finally:
        returned.set()
        await watching
    assert min(lowest) == _BACKENDS


async def test_backends_of_another_process_in_the_cluster_stay_ready_while_it_is_away(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """Two processes share the lower cluster. The one that stays copies the endpoints of both."""
    lower = sandbox.lower[1]
    config = json.loads((sandbox.directory / "virtual-node.yaml").read_text(encoding="utf-8"))
    cluster = {**config["clusters"][1], "name": "shared", "nodeName": "vn-shared", "labels": {}}
    file = sandbox.directory / "shared.yaml"
    file.write_text(json.dumps({**config, "clusters": [cluster]}), encoding="utf-8")
    other = await sandbox.start_virtual_node("--config", str(file), name="shared")
    try:
        await node_ready(upper, "vn-shared")
        names = {"web-0": SIMULATED, "web-1": "vn-shared"}
        await create(upper, namespace, service({"port": 80}))
        for name, node in names.items():
            body = pod(name, "sleep 3600", node=node)
            body["metadata"]["labels"] = {"app": "web"}
            await create(upper, namespace, body)
            await ready(upper, namespace, name)

        async def below() -> list[tuple[str, bool]]:
            found = await endpoints(lower, namespace)
            return sorted((one["targetRef"]["name"], one["conditions"]["ready"]) for one in found)

        both = [(name, True) for name in names]
        await becomes(below, both, what="both pods are ready endpoints in the lower cluster")
        await other.kill()
        await mark_pods_not_ready(upper, namespace)

        async def repaired() -> bool:
            found = await get(upper, namespace, "pod", "web-0")
            away = await get(upper, namespace, "pod", "web-1")
            return is_true(found["status"], "Ready") and not is_true(away["status"], "Ready")

        await eventually(repaired, what="only the pod of the process that runs is repaired")
        for _ in range(10):
            assert await below() == both
            await asyncio.sleep(0.2)
        patch = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
        await lower.kubectl("-n", namespace, "patch", "pod", "web-1", "--subresource=status", "-p", patch)
        await becomes(below, [("web-0", True), ("web-1", False)], what="the lower pod decides")
    finally:
        await other.stop()
        sandbox.processes.remove(other)
        await upper.kubectl("delete", "node", "vn-shared", "--ignore-not-found")


async def test_clients_leave_a_lost_cluster_and_return(sandbox: Sandbox, upper: Cluster, namespace: str):
    """A cluster that keeps its pods ready does not lose them. The client runs in the other cluster."""
    lower = sandbox.lower[1]
    file = sandbox.directory / "virtual-node.yaml"
    original = file.read_text(encoding="utf-8")
    config = json.loads(original)
    config["clusters"][1]["unreachable"] = {"pods": "NotReady", "afterSeconds": _AFTER}
    container = {"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    serve = "echo web > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
    here = pod("here", serve, container=container)
    away = pod("away", "sleep 3600", node=SIMULATED, tolerations=[{"operator": "Exists"}])
    for body in (here, away):
        body["metadata"]["labels"] = {"app": "web"}

    async def ready_nodes() -> list[str]:
        found = await endpoints(upper, namespace)
        return sorted(one["nodeName"] for one in found if one["conditions"]["ready"])

    async def seen_by_clients() -> int:
        return await ready_addresses(sandbox.lower[0], namespace)

    try:
        file.write_text(json.dumps(config), encoding="utf-8")
        await node_ready(upper, SIMULATED)
        await create(upper, namespace, service({"port": 80, "targetPort": 8080}), here)
        await ready(upper, namespace, "here")
        await start_client(upper, namespace)
        await create(upper, namespace, away)
        await becomes(ready_nodes, sorted([REAL, SIMULATED]), what="both clusters have a ready pod")
        await becomes(seen_by_clients, 2, what="the client's cluster has both endpoints")
        assert lower.apiserver.identity is not None
        lower.apiserver.identity.signal(signal.SIGSTOP)
        try:
            await becomes(ready_nodes, [REAL], what="the pod of the lost cluster is not ready")
            await becomes(seen_by_clients, 1, what="the client's cluster has no endpoint of the lost one")
            status = (await get(upper, namespace, "pod", "away"))["status"]
            assert condition(status, "Ready")["reason"] == "LowerClusterUnreachable"
            assert is_true(status, "ContainersReady")
            good, _ = await count(upper, namespace, above=0)
            # A request that began before may still fail, and the node needs a moment to drop the endpoint.
            good, bad = await count(upper, namespace, above=good + 5)
            again, worse = await count(upper, namespace, above=good + 20)
            assert (again > good, worse - bad) == (True, 0)
        finally:
            lower.apiserver.identity.signal(signal.SIGCONT)
        await becomes(ready_nodes, sorted([REAL, SIMULATED]), within=PATIENCE, what="the pod is ready again")
    finally:
        file.write_text(original, encoding="utf-8")
        await node_ready(upper, SIMULATED)


async def test_clients_keep_the_backends_of_a_lost_cluster_that_keeps_its_pods_ready(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """Its containers run on, and no endpoint changes in either cluster, neither during the outage nor after it."""
    lower, other = sandbox.lower[:2]
    file = sandbox.directory / "virtual-node.yaml"
    original = file.read_text(encoding="utf-8")
    config = json.loads(original)
    config["clusters"][0]["unreachable"] = {"pods": "KeepReady", "afterSeconds": _AFTER}
    container = {"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    serve = "echo web > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
    here = pod("here", serve, container=container, tolerations=[{"operator": "Exists"}])
    here["metadata"]["labels"] = {"app": "web"}

    async def states() -> set[tuple[str, bool]]:
        """Return each endpoint and condition Ready of the pod, of both clusters that answer."""
        found = [*await endpoints(upper, namespace), *await endpoints(other, namespace)]
        of_pod = (await get(upper, namespace, "pod", "here"))["status"]
        shown = {(one["targetRef"]["name"], bool(one["conditions"]["ready"])) for one in found}
        return shown | {("pod", is_true(of_pod, "Ready"))}

    async def node_is_ready() -> bool:
        return is_true((await get(upper, "", "node", REAL))["status"], "Ready")

    steady = {("here", True), ("pod", True)}
    try:
        file.write_text(json.dumps(config), encoding="utf-8")
        await node_ready(upper, REAL)
        await create(upper, namespace, service({"port": 80, "targetPort": 8080}), here)
        await ready(upper, namespace, "here")
        await start_client(upper, namespace, tolerations=[{"operator": "Exists"}])
        await becomes(states, steady, what="the pod is an endpoint")
        good, bad = await count(upper, namespace, above=0)
        assert lower.apiserver.identity is not None
        lower.apiserver.identity.signal(signal.SIGSTOP)
        try:
            await becomes(node_is_ready, False, within=PATIENCE, what="the node is not ready")
            for _ in range(_AFTER):
                assert await states() == steady
                await asyncio.sleep(1)
        finally:
            lower.apiserver.identity.signal(signal.SIGCONT)
        await node_ready(upper, REAL)
        for _ in range(_AFTER):
            assert await states() == steady
            await asyncio.sleep(0.5)
        again, worse = await count(upper, namespace, above=good + 20)
        assert (again > good, worse - bad) == (True, 0)
    finally:
        file.write_text(original, encoding="utf-8")
        await node_ready(upper, REAL)
