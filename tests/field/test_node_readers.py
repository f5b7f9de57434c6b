"""Programs that read Nodes and kubelets: a virtual node is as a real one to them."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping

import aiohttp
import pytest
from yarl import URL

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.ports import free_ports
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.kubelet_paths import DIFFERENT, KUBELET, Response, matches
from tests.waiting import create, eventually, get, node_ready, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
EXCLUDED = "node.kubernetes.io/exclude-from-external-load-balancers"


async def test_every_path_responds_as_that_of_a_real_kubelet(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """The recorded responses are those of the kubelet, and a virtual node differs only where it is documented."""
    await create(upper, namespace, pod("p", "sleep 1000"))
    await ready(upper, namespace, "p")
    lower = sandbox.clusters[1]
    (real_node,) = (await lower.api.read("/api/v1/nodes"))["items"]
    # The root file system of a container is unknown to cAdvisor.
    no_file_system = dict.fromkeys(("GET", "POST"), Response(500))
    without = {path: {**KUBELET[path], **no_file_system} for path in ("/stats/summary", "/stats/summary/")}
    wrong = await _wrong(lower, real_node["metadata"]["name"], namespace, {**KUBELET, **without})
    assert wrong == []
    assert await _wrong(upper, REAL, namespace, {**KUBELET, **DIFFERENT}) == []


async def test_virtual_nodes_have_what_readers_of_machines_expect(upper: Cluster):
    """Different identities, and a label against load balancers that stays, also with a value of a user."""
    nodes = [await get(upper, "", "node", name) for name in (REAL, SIMULATED)]
    for field in ("machineID", "systemUUID", "bootID"):
        values = [node["status"]["nodeInfo"][field] for node in nodes]
        assert all(values)
        assert len(set(values)) == len(values)
    assert [node["metadata"]["labels"][EXCLUDED] for node in nodes] == ["true", "true"]
    await upper.kubectl("label", "node", SIMULATED, f"{EXCLUDED}-")

    async def is_back() -> bool:
        return EXCLUDED in (await get(upper, "", "node", SIMULATED))["metadata"]["labels"]

    await eventually(is_back, what="the label is restored")
    await upper.kubectl("label", "--overwrite", "node", SIMULATED, f"{EXCLUDED}=false", "other=value")
    await upper.kubectl("label", "node", SIMULATED, "clusterID-")  # makes the virtual node compare the labels

    async def compared() -> bool:
        return "clusterID" in (await get(upper, "", "node", SIMULATED))["metadata"]["labels"]

    await eventually(compared, what="the labels are compared")
    assert (await get(upper, "", "node", SIMULATED))["metadata"]["labels"][EXCLUDED] == "false"
    await upper.kubectl("label", "--overwrite", "node", SIMULATED, f"{EXCLUDED}=true", "other-")


async def test_kubelet_series_count_the_pods_of_the_virtual_node(upper: Cluster, namespace: str):
    """A process with several virtual nodes serves them apart."""
    await create(upper, namespace, pod("p", "sleep 1000"))
    await ready(upper, namespace, "p")

    async def counted() -> bool:
        real, simulated = [await _series(upper, node) for node in (REAL, SIMULATED)]
        assert (
            real['kubelet_node_name{node="vn-lower1"}']
            == simulated['kubelet_node_name{node="vn-lower2"}']
            == 1
        )
        return real["kubelet_running_pods"] >= 1 and real["kubelet_pod_start_duration_seconds_count"] >= 1

    await eventually(counted, what="the pod is counted")


async def test_virtual_nodes_with_addresses_of_their_own_share_the_port(sandbox: Sandbox, upper: Cluster):
    """Programs that assume one port for all kubelets reach the right one. Another process has these virtual nodes."""
    (port,) = free_ports(1)
    addresses = {"vn-one": "127.0.0.11", "vn-two": "127.0.0.12"}
    cluster = {
        "name": "apart",
        "kubeconfig": str(sandbox.clusters[2].kubeconfig),
        "namespaces": {"prefix": "apart-"},
        "nodes": [
            {
                "name": name,
                "nodeIP": address,
                "nodeSelector": {"kubernetes.io/hostname": f"lower2-node-{number}"},
            }
            for number, (name, address) in enumerate(addresses.items())
        ],
    }
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "ClusterSetConfiguration",
        "kubeconfig": str(upper.kubeconfig),
        "kubelet": {"port": port},
        "clusters": [cluster],
    }
    file = sandbox.directory / "apart.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    process = await sandbox.start_virtual_node("--config", str(file), name="virtual-node-apart")
    try:
        for name, address in addresses.items():
            await node_ready(upper, name)
            assert await _base(upper, name) == f"https://{address}:{port}"
            assert (await _series(upper, name))[f'kubelet_node_name{{node="{name}"}}'] == 1
    finally:
        await process.stop()
        await upper.kubectl("delete", "nodes", *addresses, "--ignore-not-found")


async def _series(cluster: Cluster, node: str) -> dict[str, float]:
    """Return the samples of a kubelet API's own series."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{await _base(cluster, node)}/metrics", ssl=_context(cluster)) as answer,
    ):
        lines = (await answer.text()).splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("kubelet_"))
    }


async def _base(cluster: Cluster, node: str) -> str:
    """Return the URL of a node's kubelet API."""
    status = (await get(cluster, "", "node", node))["status"]
    address = next(one["address"] for one in status["addresses"] if one["type"] == "InternalIP")
    return f"https://{address}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}"


def _context(cluster: Cluster) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(cluster.pki.certificate("admin"), cluster.pki.key("admin"))
    return context


async def _wrong(
    cluster: Cluster, node: str, namespace: str, paths: Mapping[str, Mapping[str, Response]]
) -> list[tuple[str, str, Response, int, dict[str, str]]]:
    """Return what differs from the expected responses of a node's kubelet API."""
    base, context = await _base(cluster, node), _context(cluster)
    wrong = []
    async with aiohttp.ClientSession() as session:
        for path, responses in paths.items():
            url = URL(base + path.replace("NS", namespace).replace("POD", "p"), encoded=True)
            for method, expected in responses.items():
                async with session.request(method, url, ssl=context, allow_redirects=False) as answer:
                    if not matches(expected, answer.status, answer.headers):
                        wrong.append((method, path, expected, answer.status, dict(answer.headers)))
    return wrong
