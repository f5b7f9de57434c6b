"""Programs that read Nodes and kubelets: a virtual node is as a real one to them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import aiohttp
import pytest
from yarl import URL

from hack.sandbox import Cluster, Sandbox
from tests.e2e.conftest import REAL, create, get, pod, ready
from tests.kubelet_paths import DIFFERENT, KUBELET, Response, matches

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


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


async def _wrong(
    cluster: Cluster, node: str, namespace: str, paths: Mapping[str, Mapping[str, Response]]
) -> list[tuple[str, str, Response, int, dict[str, str]]]:
    """Return what differs from the expected responses of a node's kubelet API."""
    status = (await get(cluster, "", "node", node))["status"]
    address = next(one["address"] for one in status["addresses"] if one["type"] == "InternalIP")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(cluster.pki.certificate("admin"), cluster.pki.key("admin"))
    base = f"https://{address}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}"
    wrong = []
    async with aiohttp.ClientSession() as session:
        for path, responses in paths.items():
            url = URL(base + path.replace("NS", namespace).replace("POD", "p"), encoded=True)
            for method, expected in responses.items():
                async with session.request(method, url, ssl=context, allow_redirects=False) as answer:
                    if not matches(expected, answer.status, answer.headers):
                        wrong.append((method, path, expected, answer.status, dict(answer.headers)))
    return wrong
