"""Attacks of an administrator of a lower cluster on objects of the upper cluster, on real API servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready

pytestmark = pytest.mark.e2e
NODE = "vn"
DISKS, CLOUD = "local-disks", "gp3"
OTHERS = [{"ip": "203.0.113.5"}, {"hostname": "lb.cluster-b.example"}]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(simulated: Lend) -> AsyncIterator[Sandbox]:
    """A virtual node for namespace shop only, which publishes a class and follows Ingresses."""
    async with simulated(lower=1) as sandbox:
        config = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(sandbox.upper.kubeconfig),
            "kubelet": {"port": 0, "nodeIp": LOOPBACK},
            "clusters": [
                {
                    "name": "lower1",
                    "kubeconfig": str(sandbox.lower[0].kubeconfig),
                    "nodeName": NODE,
                    "namespaces": {"allowed": ["shop"]},
                    "volumes": {"published": [DISKS, CLOUD]},
                    "follow": ["ingresses"],
                }
            ],
        }
        file = sandbox.directory / "virtual-node.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        for name, provisioner in ((DISKS, "kubernetes.io/no-provisioner"), (CLOUD, "ebs.csi.aws.com")):
            await sandbox.upper.apply(_storage_class(name, provisioner))
        await sandbox.start_virtual_node("--config", str(file))
        await node_ready(sandbox.upper, NODE)
        for namespace in ("shop", "bank"):
            await make_namespace(sandbox.upper, namespace)
        yield sandbox


def _storage_class(name: str, provisioner: str) -> dict[str, Any]:
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return {**head, "provisioner": provisioner, "volumeBindingMode": "Immediate"}


def _volume(name: str, storage_class: str) -> dict[str, Any]:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "hostPath": {"path": "/tmp"},
    }
    annotations = {"note": "x" * 20_000}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


async def test_lower_cluster_does_not_take_claims_of_a_class_with_a_provisioner(clusters: Sandbox):
    """The claim is in a namespace that this lower cluster must not serve; a class for such volumes is published."""
    upper, lower = clusters.upper, clusters.lower[0]
    for number in range(3):
        await lower.apply(_volume(f"evil-{number}", CLOUD))
    await lower.apply(_volume("disk-1", DISKS))

    async def mirrors() -> list[str]:
        return sorted(one["metadata"]["name"] for one in (await get(upper, "", "pv"))["items"])

    await becomes(mirrors, ["lower1-disk-1"], what="only the published volume has a mirror")
    mirror = await get(upper, "", "pv", "lower1-disk-1")
    assert len(json.dumps(mirror["metadata"].get("annotations"))) < 1000
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": CLOUD,
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "ledger"},
        "spec": spec,
    }
    await create(upper, "bank", claim)

    async def is_given_to_its_provisioner() -> bool:
        annotations = (await get(upper, "bank", "pvc", "ledger"))["metadata"].get("annotations") or {}
        return annotations.get("volume.kubernetes.io/storage-provisioner") == "ebs.csi.aws.com"

    await eventually(is_given_to_its_provisioner, what="the volume controller looked for a volume before")
    assert (await get(upper, "bank", "pvc", "ledger"))["status"]["phase"] == "Pending"
    assert await mirrors() == ["lower1-disk-1"]


async def _addresses(cluster: Cluster) -> list[dict[str, str]]:
    status = (await get(cluster, "shop", "ingresses", "web"))["status"]
    found: list[dict[str, str]] = (status.get("loadBalancer") or {}).get("ingress") or []
    return found


async def _serve(cluster: Cluster, *addresses: dict[str, str]) -> None:
    status = {"status": {"loadBalancer": {"ingress": [*addresses]}}}
    await cluster.kubectl(
        "-n", "shop", "patch", "ingress", "web", "--subresource=status", "--type=merge", "-p", json.dumps(status)
    )  # fmt: skip


async def test_forged_record_removes_no_addresses_of_other_clusters(clusters: Sandbox):
    """Other clusters have written to the status. The lower administrator records their addresses as its own."""
    upper, lower = clusters.upper, clusters.lower[0]
    port = {"port": 80, "protocol": "TCP"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [port]}}
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "web"},
        "spec": {"defaultBackend": backend},
    }
    await create(upper, "shop", service, ingress, pod("web", "sleep 3600", node=NODE))
    await ready(upper, "shop", "web")
    await _serve(upper, *OTHERS)

    async def is_copied() -> bool:
        return bool((await get(lower, "shop", "ingresses", "web"))["metadata"]["uid"])

    await eventually(is_copied, what="the Ingress is copied")
    own, next_own = {"ip": "198.51.100.66"}, {"ip": "198.51.100.67"}
    await _serve(lower, own)
    await becomes(lambda: _addresses(upper), [*OTHERS, own], what="the address is added")
    for forged in (json.dumps(OTHERS), json.dumps({"addresses": OTHERS, "hash": "0" * 64})):
        await lower.kubectl(
            "-n", "shop", "annotate", "ingress", "web", f"virtual-node.io/reported={forged}", "--overwrite"
        )
        await _serve(lower, own)
    await _serve(lower, own, next_own)
    await becomes(lambda: _addresses(upper), [*OTHERS, own, next_own], what="a later address is added")
    # Reported for a while, the addresses of others are still not those of this cluster.
    await _serve(lower, *OTHERS, next_own)
    await _serve(lower)
    await becomes(lambda: _addresses(upper), [*OTHERS, own], what="only the recorded address is removed")
