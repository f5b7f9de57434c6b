"""Simulated lower nodes: kwok acts as kubelet for all nodes of a cluster, or for those with its label."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterset.model.pod.conditions import is_true
from hack.sandbox.builds.images import architecture
from hack.sandbox.cluster import GO_ENVIRONMENT, LOOPBACK, Cluster
from hack.sandbox.errors import SandboxError
from hack.sandbox.nodes.network import run
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process

_TYPE = "kwok"
"""Value of the label ``type`` of simulated nodes."""
_READY_SECONDS = 150.0


def kwok_process(
    cluster: Cluster, binaries: Mapping[str, Path], *, every_node: bool = True, dies_with_parent: bool = False
) -> Process:
    """Return the kwok controller of a cluster.

    Args:
        cluster: cluster of the simulated nodes.
        binaries: kwok, and the program that prints its stages.
        every_node: whether kwok simulates every node of the cluster; otherwise those with label ``type=kwok``,
            because virtual nodes have their own kubelet.
        dies_with_parent: whether kwok is killed when this process ends.
    """
    nodes = (
        ["--manage-all-nodes=true"]
        if every_node
        else ["--manage-all-nodes=false", f"--manage-nodes-with-label-selector=type={_TYPE}"]
    )
    (port,) = free_ports(1)
    kubeconfig = cluster.write_kubeconfig("kwok")
    stages = cluster.directory / "stages.yaml"
    stages.write_text(run(str(binaries["stages"])), encoding="utf-8")
    return Process(
        "kwok",
        [
            binaries["kwok"],
            f"--config={stages}",
            f"--kubeconfig={kubeconfig}",
            *nodes,
            f"--node-ip={LOOPBACK}",
            f"--node-port={port}",
            f"--server-address={LOOPBACK}:{port}",
            f"--tls-cert-file={cluster.pki.certificate('apiserver')}",
            f"--tls-private-key-file={cluster.pki.key('apiserver')}",
            "--node-lease-duration-seconds=40",
        ],
        directory=cluster.directory,
        env=GO_ENVIRONMENT,
        dies_with_parent=dies_with_parent,
    )


async def add_nodes(cluster: Cluster, process: Process, names: Sequence[str]) -> None:
    """Create simulated nodes and wait until the cluster's kwok has made them Ready.

    Raises:
        SandboxError: the nodes do not become Ready, or kwok ended.
    """
    for name in names:
        await cluster.api.create("/api/v1/nodes", kwok_node(name))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _READY_SECONDS
    waiting = set(names)
    while waiting:
        process.check()
        if loop.time() > deadline:
            raise SandboxError(
                f"{cluster.name}: not Ready: {', '.join(sorted(waiting))} (log: {process.log})"
            )
        await asyncio.sleep(0.1)
        nodes = (await cluster.api.read("/api/v1/nodes"))["items"]
        waiting -= {node["metadata"]["name"] for node in nodes if is_true(node["status"], "Ready")}


def kwok_node(
    name: str,
    *,
    cpu: str = "64",
    memory: str = "256Gi",
    pods: int = 5000,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    extended: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a Node object for kwok to simulate."""
    resources = {
        "cpu": cpu,
        "memory": memory,
        "pods": str(pods),
        "ephemeral-storage": "1Ti",
        **(extended or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture(),
                "type": _TYPE,
                **(labels or {}),
            },
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {"capacity": resources, "allocatable": resources},
    }
