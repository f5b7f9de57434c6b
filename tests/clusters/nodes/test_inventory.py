"""ClusterProfiles become virtual nodes and disappear at run time, and hostile ones disturb nothing, on real API servers."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from clusterset.model import names
from clusterset.profile_clusters import REASON
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from hack.sandbox import Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.command import Completed, command
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_multi_scheduler
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from tests.clusters.nodes.inventory import (
    ACCOUNT,
    CRD,
    FLEET,
    cluster_profile,
    field,
    install_rights,
    write_provider,
)
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready

pytestmark = pytest.mark.e2e
SHOP = "shop"
NODE = "profile-tokyo"


@dataclass(slots=True)
class World:
    """Lower cluster 1 is in the configuration file as ``profile-taken``; lower cluster 2 is only in the inventory."""

    sandbox: Sandbox
    process: Process
    profiles: Mapping[str, Any]
    """The setting ``clusterProfiles``."""
    address: str
    """Address of the process's health and metrics."""

    async def apply(self, *profiles: dict[str, Any]) -> None:
        """Create or change ClusterProfiles."""
        await self.sandbox.upper.apply(*profiles)

    async def page(self, path: str) -> str:
        """Return a page of the process's health server."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}{path}") as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def refused(self) -> dict[str, str]:
        """Return the messages of the events about refused ClusterProfiles, by name."""
        found = await self.sandbox.upper.api.read(resources.EVENTS.path(namespace=FLEET))
        return {
            one["involvedObject"]["name"]: one["message"] for one in found["items"] if one["reason"] == REASON
        }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory, simulated: Lend) -> AsyncIterator[World]:
    """Both lower clusters, the CRD without ClusterProfiles, and a virtual-node process with the chart's rights."""
    async with simulated() as sandbox:
        await sandbox.upper.apply(CRD)
        await make_namespace(sandbox.upper, FLEET)
        await make_namespace(sandbox.upper, SHOP)
        settings = configuration(sandbox)
        settings["clusters"] = [{**settings["clusters"][0], "name": "profile-taken"}]
        settings["leaseDuration"] = 12
        settings["clusterProfiles"] = {
            "namespace": FLEET,
            "labelSelector": "virtual-node=yes",
            "providersFile": str(
                write_provider(tmp_path_factory.mktemp("providers"), sandbox.upper, sandbox.lower[1])
            ),
            "defaults": {"labels": {"source": "inventory"}, "namespaces": {"prefix": "upper-"}},
        }
        kubeconfig = await install_rights(sandbox, settings["clusterProfiles"])
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")
        (port,) = free_ports(1)
        address = f"{LOOPBACK}:{port}"
        process = await sandbox.start_virtual_node(
            f"--config={file}", f"--metrics-addr={address}", f"--kubeconfig={kubeconfig}"
        )
        await node_ready(sandbox.upper, "vn-lower1")
        yield World(sandbox, process, settings["clusterProfiles"], address)


async def test_profiles_come_and_go_at_run_time(world: World):
    """A pod runs in the cluster of a ClusterProfile. Without the label the node is lost and the pod stays; with it, it is back."""
    upper, lower = world.sandbox.upper, world.sandbox.lower[1]
    await world.apply(cluster_profile(lower, "tokyo"))
    await node_ready(upper, NODE)
    node = await get(upper, "", "node", NODE)
    assert node["metadata"]["labels"]["source"] == "inventory"
    await create(upper, SHOP, _pod())
    await ready(upper, SHOP, "web")

    async def status() -> str:
        conditions = (await get(upper, "", "node", NODE))["status"]["conditions"]
        return next((str(one["status"]) for one in conditions if one["type"] == "Ready"), "")

    await upper.kubectl("-n", FLEET, "label", "clusterprofile", "tokyo", "virtual-node-")
    await becomes(status, "Unknown", what="the removed cluster's node has no heartbeat")
    assert len((await get(lower, f"upper-{SHOP}", "pods"))["items"]) == 1
    await node_ready(upper, "vn-lower1")
    await world.apply(cluster_profile(lower, "tokyo"))
    await node_ready(upper, NODE)
    await ready(upper, SHOP, "web")


async def test_hostile_profiles_disturb_nothing_and_are_reported(world: World):
    """Each is named by an event; the process stays ready, and both working clusters stay Ready."""
    upper, lower = world.sandbox.upper, world.sandbox.lower[1]
    await world.apply(cluster_profile(lower, "tokyo"))
    await node_ready(upper, NODE)
    before = await _started(world)
    hostile = {
        "taken": cluster_profile(lower, "taken"),
        "url": cluster_profile(lower, "url", server="http://169.254.169.254"),
        "broken": cluster_profile(lower, "broken", server="https://[::1"),
        "unverified": cluster_profile(lower, "unverified", **field("insecure-skip-tls-verify", True)),
        "reads": cluster_profile(lower, "reads", **field("certificate-authority", "/etc/passwd")),
        "unknown": cluster_profile(lower, "unknown", provider="other-provider"),
        "huge": cluster_profile(lower, "huge", padding="x" * 300_000),
        "x" * 200: cluster_profile(lower, "x" * 200),
        "no.label": cluster_profile(lower, "no.label"),
        "types": {**cluster_profile(lower, "types"), "status": [1]},
    }
    # Their form is right, so they start, fail and are tried again alone.
    failing = [
        cluster_profile(lower, "dead", server="https://127.0.0.1:1"),
        cluster_profile(upper, "upper"),
        cluster_profile(
            lower, "impostor", **field("certificate-authority-data", base64.b64encode(b"no").decode())
        ),
    ]
    for profile in (*hostile.values(), *failing):
        await upper.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(profile))

    async def named() -> list[str]:
        return sorted(await world.refused())

    await becomes(named, sorted(hostile), what="every hostile ClusterProfile has an event")
    reasons = await world.refused()
    assert "already has a lower cluster" in reasons["taken"]
    assert "names no provider" in reasons["unknown"]
    assert "more than 65,536 bytes" in reasons["huge"]
    assert f'virtual_node_cluster_profiles{{state="refused"}} {len(hostile)}.0' in await world.page(
        "/metrics"
    )
    await world.page("/readyz")
    assert await _started(world) == before
    for name in ("vn-lower1", NODE):
        await node_ready(upper, name)
    names = [one["metadata"]["name"] for one in (await get(upper, "", "nodes"))["items"]]
    assert {"vn-lower1", NODE} <= set(names) <= {"vn-lower1", NODE, "profile-dead"}

    async def pod_runs() -> bool:
        found = await get(upper, SHOP, "pods")
        return all(one["status"].get("phase") == "Running" for one in found["items"])

    await eventually(pod_runs, what="the pods run")


async def test_the_chart_limits_the_virtual_node_to_nodes_with_the_prefix(world: World):
    """RBAC allows all Nodes, because their names are not known; the admission policy refuses the others."""
    upper = world.sandbox.upper
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    for name in ("real", "profile-other"):
        await upper.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        await upper.apply({**lease, "metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {}})

    async def refusals(client: Client, name: str) -> list[str]:
        patch = {"metadata": {"labels": {"a": "b"}}}
        lease = await client.get(resources.LEASES, name, namespace="kube-node-lease")
        return [
            await _refusal(client.patch(resources.NODES, name, patch)),
            await _refusal(client.patch(resources.NODES, name, patch, subresource="status")),
            await _refusal(client.update(resources.LEASES, lease)),
        ]

    account = await kubeconfig.load(str(upper.directory / ACCOUNT))
    async with Client(account, cluster="upper") as client:

        async def are_denied() -> bool:
            return all("denied request" in why for why in await refusals(client, "real"))

        await eventually(are_denied, what="the policy refuses other nodes")
        assert await refusals(client, "profile-other") == ["", "", ""]
    await upper.kubectl("delete", "node", "real", "profile-other")


async def _refusal(request: Awaitable[object]) -> str:
    """Return why a request is refused; empty if it is not."""
    try:
        await request
    except ApiError as error:
        return error.message or str(error)
    return ""


async def test_the_multi_scheduler_reads_the_cluster_of_a_profile(world: World):
    """An event has the agent's answer about the pod's node, beside hostile ClusterProfiles of the test before."""
    upper, lower = world.sandbox.upper, world.sandbox.lower[1]
    await world.apply(cluster_profile(lower, "tokyo"))
    await node_ready(upper, NODE)
    await start_multi_scheduler(
        world.sandbox,
        settings={"clusterProfiles": {**world.profiles, "defaults": {"namespaces": {"prefix": "upper-"}}}},
    )
    pod = _pod("scheduled")
    pod["spec"] |= {"nodeName": None, "nodeSelector": {"source": "inventory"}}
    await create(upper, SHOP, pod)
    await ready(upper, SHOP, "scheduled")
    assert (await get(upper, SHOP, "pod", "scheduled"))["spec"]["nodeName"] == NODE

    async def answered() -> bool:
        found = await upper.api.read(resources.EVENTS.path(namespace=SHOP))
        return any(
            one["reason"] == names.EVENT_SCORED and one["involvedObject"]["name"] == "scheduled"
            for one in found["items"]
        )

    await eventually(answered, what="the fit agent has judged the cluster of the ClusterProfile")


async def test_commands_read_the_clusters_of_profiles(world: World):
    """``check`` and ``inspect`` report on them, and ``cleanup`` removes their objects and their virtual nodes."""
    upper, lower = world.sandbox.upper, world.sandbox.lower[1]
    await world.apply(cluster_profile(lower, "tokyo"))
    await node_ready(upper, NODE)
    settings = {
        **configuration(world.sandbox),
        "clusters": [],
        "clusterProfiles": {**world.profiles, "names": ["tokyo"]},
    }
    file = world.sandbox.directory / "profiles.yaml"
    file.write_text(json.dumps(settings), encoding="utf-8")

    async def run(*words: str) -> Completed:
        return await command(
            [sys.executable, "-m", "virtual_node", *words, f"--config={file}"], check=False, timeout=120
        )

    checked = json.loads((await run("check", "-o", "json")).stdout)["findings"]
    assert {one["ok"] for one in checked if one["cluster"] == NODE} == {True}
    refused = " ".join(one["detail"] for one in checked if one["check"] == "ClusterProfile")
    assert all(f"{profile}" in refused for profile in ("fleet/unknown", "fleet/huge")), refused
    inspected = json.loads((await run("inspect", "-o", "json")).stdout)
    assert [(one["name"], one["error"]) for one in inspected["clusters"]][1:] == [(NODE, "")]
    await upper.kubectl("-n", SHOP, "delete", "pods", "--all")
    assert (await get(lower, "", "namespaces", labels=names.LABEL_UPPER_CLUSTER))["items"]
    await world.process.stop()
    cleaned = await run("cleanup", "--timeout=30s")
    assert f"node {NODE} removed" in cleaned.stderr
    found = {one["metadata"]["name"] for one in (await get(upper, "", "nodes"))["items"]}
    assert NODE not in found
    assert "vn-lower1" in found
    for namespace in (await get(lower, "", "namespaces", labels=names.LABEL_UPPER_CLUSTER))["items"]:
        assert namespace["metadata"].get("deletionTimestamp")


async def _started(world: World) -> str:
    """Return when the process started, from its metrics."""
    return next(
        line
        for line in (await world.page("/metrics")).splitlines()
        if line.startswith("process_start_time_seconds")
    )


def _pod(name: str = "web") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "c", "image": "busybox"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
