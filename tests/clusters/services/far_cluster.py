"""A second lower cluster with a real node, beside the shared one, on a flat network with it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

from hack.sandbox import Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.nodes import network
from tests.waiting import node_ready

FAR = "vn-far"


@contextlib.asynccontextmanager
async def far_cluster(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """Run a virtual node for a second real lower cluster; at the end its pods are deleted, and then its Node."""
    upper = sandbox.upper
    async with Sandbox(lower=1, real_node=True) as far:
        assert sandbox.bridge is not None
        assert far.bridge is not None
        network.connect(sandbox.bridge, far.bridge)
        await far.upper.controller_manager.stop()  # only its lower cluster is used here
        configuration = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(upper.kubeconfig),
            "kubelet": {"port": 0, "nodeIp": LOOPBACK},
            "clusters": [{"name": "far", "kubeconfig": str(far.lower[0].kubeconfig), "nodeName": FAR}],
        }
        file = sandbox.directory / "far.yaml"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        process = await sandbox.start_virtual_node("--config", str(file), name="virtual-node-far")
        try:
            await node_ready(upper, FAR)
            yield far
            await upper.kubectl("delete", "deployments", "--all", "--all-namespaces", "--cascade=foreground")
            of_far = f"--field-selector=spec.nodeName={FAR}"
            await upper.kubectl("delete", "pods", "--all-namespaces", of_far)
        finally:
            await process.stop()
            await upper.kubectl("delete", "node", FAR)
