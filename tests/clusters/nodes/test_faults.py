"""Restarts, partitions and broken neighbours: no pod is lost or doubled, and everything recovers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterable
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.tls.key_pairs import sign
from controller_runtime.tls.pem import KeyPair
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.process import Process
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, node_ready, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

BURST = 200
MIRRORING = '"msg":"mirroring"'
"""Log message of a virtual node that begins to work for a lower cluster."""


async def pods_of(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Return all pods of a namespace."""
    items: list[dict[str, Any]] = (await get(cluster, namespace, "pods"))["items"]
    return items


def upper_uids_of(pods: Iterable[dict[str, Any]]) -> list[str]:
    """Return the upper uids that lower pods were made for."""
    return sorted(found["metadata"]["labels"]["virtual-node.io/upper-uid"] for found in pods)


async def condition(cluster: Cluster, node: str) -> dict[str, str]:
    """Return a node's Ready condition."""
    status = (await get(cluster, "", "node", node))["status"]
    found: dict[str, str] = next(entry for entry in status["conditions"] if entry["type"] == "Ready")
    return found


async def in_log(process: Process, words: str, *, times: int = 1) -> None:
    """Wait until a process has logged a text so many times."""

    async def is_logged() -> bool:
        return process.log.read_text(encoding="utf-8").count(words) >= times

    await eventually(is_logged, what=f"{process.name} logs {words}")


async def test_recovers_from_a_kill_during_200_creations(sandbox: Sandbox, upper: Cluster, namespace):
    """Every pod runs, each has exactly one lower pod."""
    lower, process = sandbox.lower[1], sandbox.processes[0]
    config = await kubeconfig.load(str(upper.kubeconfig))
    async with Client(config, qps=0, cluster="upper") as client:
        limit = asyncio.Semaphore(16)

        async def make(number: int) -> None:
            body = pod(f"burst-{number:03d}", "sleep 3600", node=SIMULATED)
            async with limit:
                await client.create(resources.PODS, body, namespace=namespace)

        async def crash() -> None:
            async def under_way() -> bool:
                return len(await pods_of(lower, namespace)) >= BURST // 10

            await eventually(under_way, what="a tenth of the burst below")
            await process.kill()

        async with asyncio.TaskGroup() as group:
            for number in range(BURST):
                group.create_task(make(number))
            group.create_task(crash())
    # Changes meanwhile: some upper pods and one lower pod are deleted.
    doomed = [f"burst-{number:03d}" for number in range(10)]
    await upper.kubectl("-n", namespace, "delete", "pod", "--wait=false", *doomed)
    await process.start()

    async def settled() -> bool:
        upper_pods = await pods_of(upper, namespace)
        return len(upper_pods) == BURST - 10 and all(
            found["status"]["phase"] == "Running" for found in upper_pods
        )

    await eventually(settled, what="190 pods Running above")
    upper_pods, lower_pods = await pods_of(upper, namespace), await pods_of(lower, namespace)
    assert upper_uids_of(lower_pods) == sorted(found["metadata"]["uid"] for found in upper_pods)


async def test_lower_apiserver_dies_and_returns(sandbox: Sandbox, upper: Cluster, namespace):
    """The node gives the reason why it is NotReady; later changes are applied afterwards, nothing is lost."""
    lower = sandbox.lower[1]
    await create(
        upper,
        namespace,
        pod("before", "sleep 3600", node=SIMULATED),
        pod("goes", "sleep 3600", node=SIMULATED),
    )
    await ready(upper, namespace, "before")
    await ready(upper, namespace, "goes")
    uid = (await get(upper, namespace, "pod", "before"))["metadata"]["uid"]
    await lower.apiserver.kill()
    try:

        async def unreachable() -> bool:
            found = await condition(upper, SIMULATED)
            return found["status"] == "False" and found["reason"] == "LowerClusterUnreachable"

        await eventually(unreachable, what="NotReady with the reason")
        during = pod("during", "sleep 3600", node=SIMULATED)
        during["spec"]["nodeName"] = SIMULATED  # the scheduler would hold it back: the node is not ready
        during["spec"]["tolerations"] = [{"operator": "Exists"}]
        await create(upper, namespace, during)
        await upper.kubectl("-n", namespace, "delete", "pod", "goes", "--wait=false")
    finally:
        await lower.restore()
    await node_ready(upper, SIMULATED)
    await ready(upper, namespace, "during")
    await upper.kubectl("-n", namespace, "wait", "--for=delete", "pod/goes", "--timeout=150s")
    assert (await get(upper, namespace, "pod", "before"))["metadata"]["uid"] == uid
    assert [found["metadata"]["name"] for found in await pods_of(lower, namespace)] == ["before", "during"]


async def test_upper_apiserver_dies_and_returns(sandbox: Sandbox, upper: Cluster, namespace):
    """Lower pods keep running; afterwards statuses and specs are mirrored."""
    lower = sandbox.lower[1]
    await create(upper, namespace, pod("steady", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "steady")
    await upper.apiserver.kill()
    try:
        found = (await get(lower, namespace, "pod", "steady"))["status"]
        assert found["phase"] == "Running"
    finally:
        await upper.restore()
    await node_ready(upper, SIMULATED)
    await upper.kubectl("-n", namespace, "delete", "pod", "steady", "--timeout=150s")
    assert not await pods_of(lower, namespace)


async def test_restart_deletes_orphans_and_keeps_unmanaged_pods(sandbox: Sandbox, upper: Cluster, namespace):
    """The upper pods were deleted while the process was down."""
    lower, process = sandbox.lower[1], sandbox.processes[0]
    await create(
        upper,
        namespace,
        pod("orphan", "sleep 3600", node=SIMULATED),
        pod("kept", "sleep 3600", node=SIMULATED),
    )
    await ready(upper, namespace, "orphan")
    await ready(upper, namespace, "kept")
    await lower.kubectl("-n", namespace, "run", "stranger", "--image=theirs", "--labels=virtual-pod=true")
    await process.stop()
    await upper.kubectl("-n", namespace, "delete", "pod", "orphan", "--grace-period=0", "--force")
    await process.start()

    async def cleaned() -> bool:
        return sorted(found["metadata"]["name"] for found in await pods_of(lower, namespace)) == [
            "kept",
            "stranger",
        ]

    await eventually(cleaned, what="the orphan gone, the others there")
    kept = await get(upper, namespace, "pod", "kept")
    assert kept["status"]["phase"] == "Running"


async def test_recreated_pod_of_the_same_name_gets_a_new_lower_pod(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """After a forced deletion."""
    lower = sandbox.lower[1]
    await create(upper, namespace, pod("again", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "again")
    await upper.kubectl("-n", namespace, "delete", "pod", "again", "--grace-period=0", "--force")
    await create(upper, namespace, pod("again", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "again")
    uid = (await get(upper, namespace, "pod", "again"))["metadata"]["uid"]
    assert upper_uids_of(await pods_of(lower, namespace)) == [uid]


async def test_one_cluster_as_several_virtual_nodes(sandbox: Sandbox, upper: Cluster, namespace):
    """Each node has the capacity and the pods of its pool."""
    lower = sandbox.lower[1]
    file = sandbox.directory / "virtual-node.yaml"
    original = file.read_text(encoding="utf-8")
    config = json.loads(original)
    pools = [
        {"name": f"vn-pool-{number}", "nodeSelector": {"kubernetes.io/hostname": f"lower2-node-{number}"}}
        for number in range(2)
    ]
    config["clusters"].append({"name": "pools", "kubeconfig": str(lower.kubeconfig), "nodes": pools})
    try:
        file.write_text(json.dumps(config), encoding="utf-8")
        for number in range(2):
            name = f"vn-pool-{number}"
            await node_ready(upper, name)

            async def capacity(name: str = name) -> str:
                return str((await get(upper, "", "node", name))["status"]["capacity"]["cpu"])

            await becomes(capacity, "64", what=f"{name}'s own share of the cluster")
            await create(upper, namespace, pod(f"on-{number}", "sleep 3600", node=name))
            await ready(upper, namespace, f"on-{number}")
            lower_pods = await get(lower, namespace, "pod", f"on-{number}")
            assert lower_pods["spec"]["nodeName"] == f"lower2-node-{number}"
        await upper.kubectl("-n", namespace, "delete", "pod", "on-0", "on-1", "--timeout=150s")
    finally:
        file.write_text(original, encoding="utf-8")
        # Otherwise they would be registered again.
        await in_log(sandbox.processes[0], '"dropped":["pools"]')
        await upper.kubectl("delete", "node", "vn-pool-0", "vn-pool-1", "--ignore-not-found")


async def test_clusters_are_added_and_removed_live(sandbox: Sandbox, upper: Cluster):
    """A cluster added to the file is served at once, an unusable one affects no other, an invalid file changes nothing."""
    file = sandbox.directory / "virtual-node.yaml"
    original = file.read_text(encoding="utf-8")
    config = json.loads(original)
    entry = {**config["clusters"][1], "name": "twin", "nodeName": "vn-twin"}
    broken = {"name": "broken", "kubeconfig": "/nowhere", "nodeName": "vn-broken"}
    config["clusters"] += [entry, broken]
    try:
        file.write_text(json.dumps(config), encoding="utf-8")
        await node_ready(upper, "vn-twin")
        file.write_text("clusters: [", encoding="utf-8")
        await in_log(sandbox.processes[0], "configuration not applied")
        assert (await condition(upper, "vn-twin"))["status"] == "True"
    finally:
        file.write_text(original, encoding="utf-8")
    await in_log(sandbox.processes[0], '"dropped":["broken","twin"]')
    await upper.kubectl("delete", "node", "vn-twin")
    assert (await condition(upper, SIMULATED))["status"] == "True"


async def test_a_rotated_kubeconfig_is_used_without_a_restart(sandbox: Sandbox, upper: Cluster, namespace):
    """Pods keep running."""
    lower, node = sandbox.lower[1], "vn-rotated"
    kubeconfig = sandbox.directory / "rotated.kubeconfig"
    shutil.copy(lower.kubeconfig, kubeconfig)
    process = await sandbox.start_virtual_node(
        f"--client-kubeconfig={kubeconfig}", f"--nodename={node}", name="rotated", env={"KUBELET_PORT": "0"}
    )
    try:
        await node_ready(upper, node)
        await create(upper, namespace, pod("before", "sleep 3600", node=node))
        await ready(upper, namespace, "before")
        begun = process.log.read_text(encoding="utf-8").count(MIRRORING)
        uid = (await get(lower, namespace, "pod", "before"))["metadata"]["uid"]
        # As a Secret volume does it: another file, with another certificate, under the same name.
        pki = lower.pki
        ca = KeyPair(pki.certificate("ca").read_bytes(), pki.key("ca").read_bytes())
        pki.issue("rotated", sign(ca, "rotated", organizations=["system:masters"], usage="client"))
        lower.write_kubeconfig("rotated", path=sandbox.directory / "rotated.fresh").rename(kubeconfig)
        # The cluster restarts with the new credentials.
        await in_log(process, MIRRORING, times=begun + 1)
        await create(upper, namespace, pod("after", "sleep 3600", node=node))
        await ready(upper, namespace, "after")
        assert (await get(lower, namespace, "pod", "before"))["metadata"]["uid"] == uid
    finally:
        await upper.kubectl(
            "-n", namespace, "delete", "pod", "before", "after", "--ignore-not-found", "--timeout=150s"
        )
        await process.stop()
        await upper.kubectl("delete", "node", node, "--ignore-not-found")


async def test_standby_replica_takes_over_after_the_leaders_death(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """The standby's node is Ready within seconds, pods untouched."""
    lower, node = sandbox.lower[1], "vn-replicated"
    flags = [
        f"--client-kubeconfig={lower.kubeconfig}", f"--nodename={node}", "--leader-elect",
        "--leader-elect-resource-name=replicated",
    ]  # fmt: skip
    environment = {"KUBELET_PORT": "0"}
    replicas = [
        await sandbox.start_virtual_node(*flags, name=f"replica-{number}", env=environment)
        for number in range(2)
    ]
    try:
        await node_ready(upper, node)
        await create(upper, namespace, pod("web", "sleep 3600", node=node))
        await ready(upper, namespace, "web")
        before = await get(lower, namespace, "pod", "web")
        (leader,) = [one for one in replicas if MIRRORING in one.log.read_text(encoding="utf-8")]
        (standby,) = [one for one in replicas if one is not leader]
        await leader.kill()
        await in_log(standby, MIRRORING)
        await create(upper, namespace, pod("later", "sleep 3600", node=node))
        await ready(upper, namespace, "later")
        assert (await get(lower, namespace, "pod", "web"))["metadata"]["uid"] == before["metadata"]["uid"]
        await node_ready(upper, node)
    finally:
        await upper.kubectl("-n", namespace, "delete", "pods", "--all", "--timeout=150s", check=False)
        for replica in replicas:
            await replica.stop()
        await upper.kubectl("delete", "node", node)
