"""kubectl commands with several steps on virtual nodes: drain, rollout, events, attach."""

from __future__ import annotations

import asyncio
import os
import pty

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.pods.test_pods import deployment
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import PATIENCE, becomes, create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def test_drain_ends_the_pods_of_a_virtual_node(sandbox: Sandbox, upper: Cluster, namespace):
    """Lower pods are gone when it returns, lower nodes are not cordoned; uncordoned, the node takes the successors."""
    lower = sandbox.lower[1]
    await create(upper, namespace, deployment("drained", node=SIMULATED, replicas=2))
    await upper.kubectl("-n", namespace, "rollout", "status", "deployment/drained", "--timeout=150s")
    before = {one["metadata"]["uid"] for one in (await get(lower, namespace, "pods"))["items"]}
    assert len(before) == 2
    try:
        # Only pods of this test, by a name that no other test uses: pods of deleted namespaces may still be on the node.
        done = await upper.kubectl("drain", SIMULATED, "--pod-selector=app=drained", "--timeout=150s")
        assert f"node/{SIMULATED} drained" in done.stdout
        after = {one["metadata"]["uid"] for one in (await get(lower, namespace, "pods"))["items"]}
        assert not before & after
        lower_nodes = (await get(lower, "", "nodes"))["items"]
        assert not any(node["spec"].get("unschedulable") for node in lower_nodes)
    finally:
        await upper.kubectl("uncordon", SIMULATED)
    await upper.kubectl("-n", namespace, "rollout", "status", "deployment/drained", "--timeout=150s")


async def test_rollout_undo_wait_and_events(upper: Cluster, namespace):
    """A rollout is undone, and ``wait`` and ``events`` see every step."""
    await create(upper, namespace, deployment("web", node=SIMULATED, replicas=2))
    for step in (
        ("set", "image", "deployment/web", "main=busybox:1.37"),
        ("rollout", "undo", "deployment/web"),
    ):
        await upper.kubectl("-n", namespace, *step)
        await upper.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=150s")
    await upper.kubectl(
        "-n",
        namespace,
        "wait",
        "--for=jsonpath={.status.phase}=Running",
        "pod",
        "-l",
        "app=web",
        "--timeout=150s",
    )

    async def images() -> set[str]:
        return {
            one["spec"]["containers"][0]["image"] for one in (await get(upper, namespace, "pods"))["items"]
        }

    await becomes(images, {"busybox:1.36"})

    async def is_shown() -> bool:
        done = await upper.kubectl("-n", namespace, "events", "--for=deployment/web")
        return done.stdout.count("ScalingReplicaSet") >= 3

    await eventually(is_shown, what="the scaling in kubectl events")


async def test_attach_has_the_containers_terminal(sandbox: Sandbox, upper: Cluster, namespace):
    """Input is read by the container's shell, and its exit code is returned."""
    shell = pod("shell", "exec sh", container={"stdin": True, "tty": True}, restartPolicy="Never")
    await create(upper, namespace, shell)
    await ready(upper, namespace, "shell")
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sandbox.binaries["kubectl"], "--kubeconfig", upper.kubeconfig, "-n", namespace, "attach", "-it", "shell",
        stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    try:
        os.write(master, b"exit 3\r")
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)

    async def code() -> int:
        (container,) = (await get(upper, namespace, "pod", "shell"))["status"]["containerStatuses"]
        return int(container["state"]["terminated"]["exitCode"])

    await becomes(code, 3)
