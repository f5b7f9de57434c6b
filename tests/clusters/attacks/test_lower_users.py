"""Attacks of a user of the lower cluster, who has the rights of ``edit`` in one namespace, on real API servers."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.ports import free_ports
from tests import workloads
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready

pytestmark = pytest.mark.e2e
NODE, USER, TEAM = "vn", "eve", "lowteam"
"""The namespace has the same name in both clusters, and the one of the lower cluster is not adopted."""


class World:
    """Two clusters, and a virtual node without a prefix that adopts nothing."""

    def __init__(self, sandbox: Sandbox, metrics: str) -> None:
        self.upper, self.lower = sandbox.upper, sandbox.lower[0]
        self._metrics = metrics
        self.cluster_id = ""

    async def marks(self, namespace: str, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the labels and annotations of an upper pod's lower pod, which any reader of pods can see."""
        metadata = (await get(self.lower, namespace, "pod", name))["metadata"]
        ours = "virtual-node.io/"
        labels = {key: value for key, value in metadata["labels"].items() if key.startswith(ours)}
        return labels, metadata["annotations"]

    async def as_user(self, *arguments: str, **options: Any) -> str:
        """Run kubectl in the lower cluster as the user, in the user's namespace."""
        done = await self.lower.kubectl(f"--as={USER}", "-n", TEAM, *arguments, **options)
        return str(done.stdout)

    async def cached(self, resource: str) -> float:
        """Return how many lower objects of a resource the virtual node keeps in memory."""
        done = await self.upper.kubectl("get", "--raw", "/metrics", f"--server=http://{self._metrics}")
        start = f'virtual_node_cached_objects{{cluster="{NODE}",resource="{resource}"}} '
        return sum(
            float(line.removeprefix(start)) for line in done.stdout.splitlines() if line.startswith(start)
        )

    async def caught_up(self) -> None:
        """Wait until the virtual node has handled all earlier changes of lower pods: one more pod runs."""
        name = f"later-{secrets.token_hex(3)}"
        await create(self.upper, "shop", pod(name, "sleep 3600", node=NODE))
        await ready(self.upper, "shop", name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(simulated: Lend) -> AsyncIterator[World]:
    """The clusters, with upper namespaces shop and lowteam, and the lower user's namespace with an old pod."""
    async with simulated(lower=1) as sandbox:
        metrics = f"{LOOPBACK}:{free_ports(1)[0]}"
        await make_namespace(sandbox.lower[0], TEAM)
        await sandbox.lower[0].kubectl(
            "-n", TEAM, "create", "rolebinding", USER, "--clusterrole=edit", f"--user={USER}"
        )
        config = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(sandbox.upper.kubeconfig),
            "kubelet": {"port": 0, "nodeIp": LOOPBACK},
            "metricsAddress": metrics,
            "clusters": [
                {"name": NODE, "kubeconfig": str(sandbox.lower[0].kubeconfig), "nodeName": NODE},
            ],
        }
        file = sandbox.directory / "virtual-node.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        await node_ready(sandbox.upper, NODE)
        for namespace in ("shop", TEAM):
            await make_namespace(sandbox.upper, namespace)
        made = World(sandbox, metrics)
        await eventually(lambda: _may_create(made), what="the user may create pods")
        await _create_trap(made, "trap")
        await _create_trap(made, "web")
        yield made


async def _may_create(world: World) -> bool:
    return "yes" in await world.as_user("auth", "can-i", "create", "pods", check=False)


async def _create_trap(world: World, name: str) -> None:
    trap = workloads.pod(name, {"command": ["sleep", "3600"]})
    await world.as_user("create", "-f", "-", input=json.dumps(trap))
    await ready(world.lower, TEAM, name)


async def _addresses(upper: Cluster, service: str) -> list[str]:
    pieces = await get(upper, "shop", "endpointslices", labels=f"kubernetes.io/service-name={service}")
    return [
        address
        for piece in pieces["items"]
        for endpoint in piece.get("endpoints") or ()
        for address in endpoint["addresses"]
    ]


@pytest.mark.parametrize("trap", ["trap", "web"])
async def test_older_pod_with_copied_marks_does_not_replace_a_lower_pod(world: World, trap: str):
    """Its address reaches neither the status nor the Service; logs and exec do not reach it; it is never deleted."""
    upper, name = world.upper, "web"
    await create(upper, "shop", pod(name, "sleep 3600", node=NODE, metadata={"labels": {"app": "web"}}))
    await upper.kubectl("-n", "shop", "expose", "pod", name, "--port=80")
    await ready(upper, "shop", name)
    address = (await get(upper, "shop", "pod", name))["status"]["podIP"]
    await becomes(lambda: _addresses(upper, name), [address], what="the Service has the pod's address")
    labels, annotations = await world.marks("shop", name)
    patch = json.dumps({"metadata": {"labels": labels, "annotations": annotations}})
    await world.as_user("patch", "pod", trap, "--type=merge", "-p", patch)
    await world.caught_up()
    assert (await get(upper, "shop", "pod", name))["status"]["podIP"] == address
    assert await _addresses(upper, name) == [address]
    for command in (["logs", name], ["exec", name, "--", "true"]):
        done = await upper.kubectl("-n", "shop", *command, check=False)
        assert TEAM not in done.stdout + done.stderr
    await upper.kubectl(
        "-n", "shop", "delete", f"pod/{name}", f"service/{name}", "--timeout=90s", timeout=120
    )
    await world.caught_up()
    metadata = (await get(world.lower, TEAM, "pod", trap))["metadata"]
    assert "deletionTimestamp" not in metadata
    await world.as_user("label", "pod", trap, *(f"{key}-" for key in labels))


async def test_pod_in_an_unmanaged_namespace_of_the_same_name_is_not_taken_for_one_that_waits(world: World):
    """The upper pod waits, because its lower namespace is not adopted; the user's pod has its name and its uid."""
    upper = world.upper
    await create(upper, "shop", pod("model", "sleep 3600", node=NODE))
    await ready(upper, "shop", "model")
    await create(upper, TEAM, pod("web", "sleep 3600", node=NODE))
    waiting = (await get(upper, TEAM, "pod", "web"))["metadata"]["uid"]
    labels, annotations = await world.marks("shop", "model")
    labels["virtual-node.io/upper-uid"] = waiting
    annotations |= {
        "virtual-node.io/upper-namespace": TEAM,
        "virtual-node.io/made-for": f"{labels['virtual-node.io/upper-cluster']}/{TEAM}/web/{waiting}",
    }
    patch = json.dumps({"metadata": {"labels": labels, "annotations": annotations}})
    await world.as_user("patch", "pod", "web", "--type=merge", "-p", patch)
    await world.caught_up()
    assert "podIP" not in (await get(upper, TEAM, "pod", "web"))["status"]
    await upper.kubectl("-n", TEAM, "delete", "pod", "web", "--timeout=90s", timeout=120)
    await world.caught_up()
    assert "deletionTimestamp" not in (await get(world.lower, TEAM, "pod", "web"))["metadata"]
    await world.as_user("label", "pod", "web", *(f"{key}-" for key in labels))


async def test_objects_with_copied_labels_take_no_memory(world: World):
    """Large ConfigMaps of the user with the label of the upper cluster; the virtual node keeps only its own."""
    upper = world.upper
    await upper.kubectl("-n", "shop", "create", "configmap", "settings", "--from-literal=a=1")
    mounted = {"volumes": [{"name": "v", "configMap": {"name": "settings"}}]}
    await create(upper, "shop", pod("reader", "sleep 3600", node=NODE, **mounted))
    await ready(upper, "shop", "reader")
    labels, annotations = await world.marks("shop", "reader")
    before = await world.cached("configmaps")
    assert before
    for number in range(10):
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"big-{number}", "labels": labels, "annotations": annotations},
            "data": {"a": "x" * 900_000},
        }
        await world.as_user("create", "-f", "-", input=json.dumps(body))
    await upper.kubectl("-n", "shop", "create", "configmap", "later", "--from-literal=a=1")
    mounted = {"volumes": [{"name": "v", "configMap": {"name": "later"}}]}
    await create(upper, "shop", pod("later-reader", "sleep 3600", node=NODE, **mounted))
    await ready(upper, "shop", "later-reader")
    await becomes(lambda: world.cached("configmaps"), before + 1, what="only the own copy is added")
    assert len((await get(world.lower, TEAM, "configmaps"))["items"]) == 11
