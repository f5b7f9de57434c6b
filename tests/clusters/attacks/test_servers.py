"""Attacks on the servers of the installation, with a real API server and a real kube-scheduler."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hack.sandbox import Sandbox
from hack.sandbox.components.scheduling import start_multi_scheduler
from hack.sandbox.nodes.kwok import kwok_node
from tests.clusters.pool import Lend
from tests.waiting import create, eventually, get, node_ready, own_namespace

pytestmark = pytest.mark.e2e
NODE = "vn-lower1"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """A lower cluster with 4 CPUs, and the extender and kube-scheduler with mutual TLS."""
    async with simulated(lower=1) as running:
        (lower,) = running.lower
        await lower.kubectl("delete", "node", "--all")
        await lower.apply(kwok_node("a", cpu="4"))
        await node_ready(lower, "a")
        configuration = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(running.upper.kubeconfig),
            "clusters": [{"name": "lower1", "kubeconfig": str(lower.kubeconfig), "nodeName": NODE}],
        }
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        await node_ready(running.upper, NODE)
        await start_multi_scheduler(running, tls=True)
        yield running


def _pod(name: str, cpu: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "containers": [{"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}],
        },
    }


async def test_unauthenticated_caller_neither_reserves_nor_releases_room(sandbox: Sandbox):
    """Without the scheduler's certificate every call is 401; kube-scheduler, which has it, places a pod at once.

    The pod takes all the room that the caller has requested.
    """
    extender = next(one for one in sandbox.processes if one.name == "multi-scheduler")
    port = next(word for word in extender.argv if word.startswith("--port=")).removeprefix("--port=")
    known = ssl.create_default_context(cafile=str(sandbox.directory / "extender-ca.crt"))
    known.load_cert_chain(
        sandbox.directory / "extender-tls.crt", keyfile=sandbox.directory / "extender-tls.key"
    )
    stranger = ssl.create_default_context(cafile=str(sandbox.directory / "extender-ca.crt"))
    async with own_namespace(sandbox.upper) as namespace, aiohttp.ClientSession() as session:

        async def ask(verb: str, call: dict[str, Any], context: ssl.SSLContext, filler: int = 0) -> int:
            body = BytesIO(json.dumps(call).encode() + b" " * filler)
            url = f"https://127.0.0.1:{port}/{verb}"
            async with session.post(url, data=body, ssl=context) as answer:
                return answer.status

        greedy = _pod("greedy", "4")
        greedy["metadata"] |= {"namespace": namespace, "uid": "11111111-1111-1111-1111-111111111111"}
        call = {"Pod": greedy, "NodeNames": [NODE]}
        for verb in ("filter", "prioritize", "preempt", "bind"):
            assert await ask(verb, call, stranger) == 401
        assert await ask("filter", call, known, filler=4 * 1024**2) == 413
        await create(sandbox.upper, namespace, _pod("web", "3"))

        async def runs() -> bool:
            found = await get(sandbox.upper, namespace, "pod", "web")
            return str(found["status"]["phase"]) == "Running"

        await eventually(runs, within=60, what="kube-scheduler asks the extender with its certificate")
        events = (await sandbox.upper.kubectl("-n", namespace, "get", "events")).stdout
        assert "FailedScheduling" not in events
