"""metrics-server as a process of this machine, behind the aggregation layer of one of the sandbox's clusters."""

from __future__ import annotations

from hack.sandbox.builds import binaries
from hack.sandbox.cluster import LOOPBACK, Cluster
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from hack.sandbox.sandbox import Sandbox

RESOLUTION_SECONDS = 10
_NAME = "metrics-server"
_NAMESPACE = "kube-system"


async def start_metrics_server(sandbox: Sandbox, cluster: Cluster) -> Process:
    """Build, run and register metrics-server, and wait until the API server serves the metrics API.

    Raises:
        SandboxError: it does not become available.
    """
    found = await binaries.ensure([_NAME])
    # Endpoints may not have loopback addresses, but the bridge's address reaches this machine, too.
    address = sandbox.bridge.address if sandbox.bridge is not None else LOOPBACK
    (port,) = free_ports(1)
    process = await sandbox.start_process(
        f"{_NAME}-{cluster.name}",
        [
            found[_NAME], f"--kubeconfig={cluster.kubeconfig}", f"--authentication-kubeconfig={cluster.kubeconfig}",
            f"--authorization-kubeconfig={cluster.kubeconfig}", f"--bind-address={address}",
            f"--secure-port={port}", f"--cert-dir={sandbox.directory / _NAME}", "--kubelet-insecure-tls",
            "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP",
            f"--metric-resolution={RESOLUTION_SECONDS}s", f"--kubelet-request-timeout={RESOLUTION_SECONDS - 2}s",
        ],
    )  # fmt: skip
    await register_metrics_api(cluster, address, port)
    return process


async def register_metrics_api(
    cluster: Cluster, address: str, port: int, *, version: str = "v1beta1"
) -> None:
    """Register a version of the metrics API at an address with a cluster's API server, and wait until it is available.

    Raises:
        SandboxError: it does not become available.
    """
    await cluster.apply(*_objects(address, port, version))
    await cluster.kubectl(
        "wait", "--for=condition=Available", f"apiservice/{version}.metrics.k8s.io", "--timeout=150s"
    )


def _objects(address: str, port: int, version: str) -> list[dict[str, object]]:
    metadata = {"name": _NAME, "namespace": _NAMESPACE}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": _NAME}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io",
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": _NAME, "namespace": _NAMESPACE, "port": 443},
            },
        },
    ]
