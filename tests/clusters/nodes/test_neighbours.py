"""Two processes of one upper cluster with the same lower cluster: each deletes only its own objects."""

from __future__ import annotations

import re
import sys

import pytest

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.command import command
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, get, node_ready, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
NEIGHBOUR = "vn-neighbour"


async def test_orphans_of_another_process_stay(sandbox: Sandbox, upper: Cluster, namespace: str):
    """Its own ``cleanup`` deletes them, and leaves the copies that other pods use."""
    lower = sandbox.lower[1]
    flags = [f"--client-kubeconfig={lower.kubeconfig}", f"--nodename={NEIGHBOUR}"]
    neighbour = await sandbox.start_virtual_node(*flags, name=NEIGHBOUR, env={"KUBELET_PORT": "0"})
    await node_ready(upper, NEIGHBOUR)
    await upper.kubectl("-n", namespace, "create", "configmap", "settings", "--from-literal=a=b")
    volumes = [{"name": "v", "configMap": {"name": "settings"}}]
    ours = pod("ours", "sleep 3600", node=SIMULATED, volumes=volumes)
    await create(upper, namespace, ours, pod("orphan", "sleep 3600", node=NEIGHBOUR, volumes=volumes))
    await ready(upper, namespace, "ours")
    await ready(upper, namespace, "orphan")

    async def lower_objects() -> set[str]:
        """Return all lower objects of the upper cluster, without the ids in names of token Secrets and of the root CA."""
        return {
            re.sub("-[0-9a-f]{8}$", "", f"{kind} {found['metadata']['name']}")
            for kind in ("pods", "secrets", "configmaps")
            for found in (await get(lower, namespace, kind, labels="virtual-node.io/upper-cluster"))["items"]
        }

    kept = {"pods ours", "secrets ours-token", "configmaps settings", "configmaps kube-root-ca.crt"}
    orphaned = {"pods orphan", "secrets orphan-token"}
    await becomes(lower_objects, kept | orphaned)
    await neighbour.stop()
    await upper.kubectl("-n", namespace, "delete", "pod", "orphan", "--grace-period=0", "--force")
    # By the time that another pod runs this process has seen the deletion.
    await create(upper, namespace, pod("later", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "later")
    kept |= {"pods later", "secrets later-token"}
    await becomes(lower_objects, kept | orphaned)
    await command(
        [sys.executable, "-m", "virtual_node", "cleanup", f"--kubeconfig={upper.kubeconfig}", *flags]
    )
    await becomes(lower_objects, kept)
    await node_ready(upper, SIMULATED)
