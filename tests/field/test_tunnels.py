"""A lower cluster that the upper side cannot connect to: its agent dials out, and all requests use the tunnel."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from clusterset.model.pod.conditions import condition
from controller_runtime.tls.key_pairs import make_ca, sign
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds import binaries
from hack.sandbox.nodes.network import Bridge, run
from hack.sandbox.process import Process
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node, pytest.mark.timeout(300)]

_NODE = "far"
_PROXY, _AGENTS = 8090, 8091
_HOUSE = "house"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def far(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Sandbox, Process]]:
    """A virtual node in a network namespace that reaches only the upper API server; yield also the agent's process."""
    if os.geteuid() != 0:
        pytest.skip("containers on a real node need root")
    async with Sandbox(
        lower=1, real_node=True, directory=tmp_path_factory.mktemp("far") / "sandbox"
    ) as sandbox:
        edge = sandbox.add_namespace()
        _close(edge, sandbox.upper.port)
        certificates = _certificates(sandbox.directory, edge)
        await _start_proxy(sandbox, edge, certificates)
        agent = await _start_agent(sandbox, edge, certificates)
        file = sandbox.directory / "far.json"
        lower = sandbox.directory / "lower.yaml"
        lower.write_text(await _kubeconfig(sandbox.lower[0], certificates), encoding="utf-8")
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "virtual-node.io/v1alpha1",
                    "kind": "ClusterSetConfiguration",
                    "kubeconfig": str(sandbox.upper.kubeconfig),
                    "kubelet": {"nodeIP": edge.node_address},
                    "clusters": [
                        {
                            "name": _NODE,
                            "kubeconfig": str(lower),
                            "unreachable": {"pods": "NotReady", "afterSeconds": 10},
                        }
                    ],
                }
            ),
            encoding="utf-8",
        )
        await sandbox.start_process(
            "virtual-node",
            edge.inside([sys.executable, "-m", "virtual_node", "--config", str(file)]),
            env={"VKUBELET_POD_IP": edge.node_address},
        )
        await node_ready(sandbox.upper, _NODE)
        yield sandbox, agent


def _close(edge: Bridge, port: int) -> None:
    """Let programs of the namespace open connections only to the upper API server and to themselves."""
    for rule in (
        "-o lo -j ACCEPT",
        "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        f"-p tcp --dport {port} -j ACCEPT",
        "-j DROP",
    ):
        run(*map(str, edge.inside(["iptables", "-A", "OUTPUT", *rule.split()])))


def _certificates(directory: Path, edge: Bridge) -> Path:
    """Write a CA with the certificates of the proxy, the agent and the virtual node; return the folder."""
    folder = directory / "tunnel"
    folder.mkdir()
    ca = make_ca("tunnel")
    pairs = {
        "ca": ca,
        "server": sign(ca, "proxy", hosts=["127.0.0.1", edge.node_address]),
        "agent": sign(ca, "agent", usage="client"),
        "client": sign(ca, "virtual-node", usage="client"),
    }
    for name, pair in pairs.items():
        pair.write(folder / f"{name}.crt", folder / f"{name}.key")
    return folder


async def _start_proxy(sandbox: Sandbox, edge: Bridge, pki: Path) -> Process:
    program = (await binaries.ensure(["konnectivity-server"]))["konnectivity-server"]
    arguments = [
        "--mode=http-connect",
        "--uds-name=",
        f"--server-port={_PROXY}",
        f"--agent-port={_AGENTS}",
        *(f"--{side}-cert={pki / 'server.crt'}" for side in ("server", "cluster")),
        *(f"--{side}-key={pki / 'server.key'}" for side in ("server", "cluster")),
        *(f"--{side}-ca-cert={pki / 'ca.crt'}" for side in ("server", "cluster")),
        "--proxy-strategies=default",
        "--keepalive-time=30s",
        "--backend-dial-timeout=10s",
    ]
    return await sandbox.start_process("proxy", edge.inside([program, *arguments]))


async def _start_agent(sandbox: Sandbox, edge: Bridge, pki: Path) -> Process:
    program = (await binaries.ensure(["konnectivity-agent"]))["konnectivity-agent"]
    arguments = [
        f"--proxy-server-host={edge.node_address}",
        f"--proxy-server-port={_AGENTS}",
        f"--ca-cert={pki / 'ca.crt'}",
        f"--agent-cert={pki / 'agent.crt'}",
        f"--agent-key={pki / 'agent.key'}",
        "--keepalive-time=30s",
        "--sync-interval=500ms",
        "--sync-interval-cap=1s",
    ]
    assert sandbox.bridge is not None
    return await sandbox.start_process("agent", sandbox.bridge.inside([program, *arguments]))


async def _kubeconfig(lower: Cluster, pki: Path) -> str:
    """Return a kubeconfig with a token for the lower cluster and a certificate for the proxy."""
    await lower.kubectl("-n", "default", "create", "serviceaccount", "far")
    await lower.kubectl(
        "create", "clusterrolebinding", "far", "--clusterrole=cluster-admin", "--serviceaccount=default:far"
    )
    token = (await lower.kubectl("-n", "default", "create", "token", "far")).stdout.strip()
    bundle = pki / "bundle.crt"
    bundle.write_bytes(lower.ca.read_bytes() + (pki / "ca.crt").read_bytes())
    cluster = {
        "server": lower.server,
        "certificate-authority": str(bundle),
        "proxy-url": f"https://127.0.0.1:{_PROXY}",
    }
    user = {
        "token": token,
        "client-certificate": str(pki / "client.crt"),
        "client-key": str(pki / "client.key"),
    }
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "far", "cluster": cluster}],
            "users": [{"name": "far", "user": user}],
            "contexts": [{"name": "far", "context": {"cluster": "far", "user": "far"}}],
            "current-context": "far",
        }
    )


async def test_pods_logs_and_streams_use_the_tunnel_and_survive_its_loss(far: tuple[Sandbox, Process]):
    """While no agent is connected, streams end with an error and pods are not ready; then all goes on where it was."""
    sandbox, agent = far
    upper, lower = sandbox.upper, sandbox.lower[0]
    await make_namespace(upper, _HOUSE)
    serve = "while true; do echo hello | nc -l -p 8080; done & echo begun; exec sleep 3600"
    await create(upper, _HOUSE, pod("web", serve, node=_NODE))
    await ready(upper, _HOUSE, "web")

    async def log() -> str:
        return (await upper.kubectl("-n", _HOUSE, "logs", "web")).stdout

    await becomes(log, "begun\n", what="the log comes through the tunnel")
    said = await upper.kubectl("-n", _HOUSE, "exec", "web", "--", "echo", "inside")
    assert said.stdout == "inside\n"
    assert await _forwarded(sandbox) == "hello\n"

    stream = asyncio.create_task(
        upper.kubectl("-n", _HOUSE, "exec", "web", "--", "sleep", "600", check=False, timeout=120)
    )
    await asyncio.sleep(2)
    uid = (await get(lower, _HOUSE, "pods", "web"))["metadata"]["uid"]
    await agent.kill()
    assert (await stream).returncode != 0

    async def why() -> str:
        found = condition((await get(upper, _HOUSE, "pods", "web"))["status"], "Ready")
        return str(found.get("message")) if found.get("status") == "False" else ""

    await eventually(lambda: _contains(why, "does not answer"), what="the pod is not ready")
    await create(upper, _HOUSE, pod("late", "sleep 3600", node=_NODE))
    await agent.start()
    await ready(upper, _HOUSE, "web")
    await ready(upper, _HOUSE, "late")
    found = await get(lower, _HOUSE, "pods", "web")
    assert (found["metadata"]["uid"], found["status"]["containerStatuses"][0]["restartCount"]) == (uid, 0)
    assert await log() == "begun\n"


async def _contains(read: Callable[[], Awaitable[str]], text: str) -> bool:
    return text in await read()


async def _forwarded(sandbox: Sandbox) -> str:
    """Return what the pod's port answers through a port-forward."""
    upper = sandbox.upper
    place = ("--kubeconfig", upper.kubeconfig, "-n", _HOUSE)
    argv = (sandbox.binaries["kubectl"], *place, "port-forward", "pod/web", ":8080")
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        port = int(line.split(" -> ")[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return (await reader.readline()).decode()
        finally:
            writer.close()
    finally:
        process.terminate()
        await process.wait()
