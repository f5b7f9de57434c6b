"""Clusters of a benchmark: a sandbox, clients without a rate limit, and virtual nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.process import Process


@dataclass(frozen=True, slots=True)
class Stage:
    """Running clusters and their clients."""

    sandbox: Sandbox
    upper: Client
    lower: list[Client]


@contextlib.asynccontextmanager
async def stage(*, lower: int = 1, kwok_nodes: int = 1, **options: Any) -> AsyncIterator[Stage]:
    """Yield clusters and their clients; they stop with the context.

    Args:
        lower: number of lower clusters.
        kwok_nodes: simulated nodes of each.
        options: further arguments of ``Sandbox``.
    """
    async with (
        Sandbox(lower=lower, kwok_nodes=kwok_nodes, progress=progress, **options) as sandbox,
        contextlib.AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(await client_of(one)) for one in sandbox.clusters]
        yield Stage(sandbox, clients[0], clients[1:])


def progress(line: str) -> None:
    """Print what a benchmark does, as a comment."""
    print(f"# {line}", flush=True)


async def client_of(cluster: Cluster, file: Path | None = None) -> Client:
    """Return a client of a sandbox cluster without a rate limit, as its administrator or with another kubeconfig."""
    config = await kubeconfig.load(str(file or cluster.kubeconfig))
    return Client(config, qps=0, user_agent="benchmark", cluster=cluster.name, timeout=120)


async def account_kubeconfig(cluster: Cluster) -> Path:
    """Write a kubeconfig with a token, as an installation has; return its path.

    An API server verifies a client certificate at every request, which is about 8 % of its CPU time.
    """
    account = {"name": "benchmark", "namespace": "default"}
    rbac = "rbac.authorization.k8s.io"
    await cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": account["name"]},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
    )
    config = json.loads(cluster.kubeconfig.read_text(encoding="utf-8"))
    token = await cluster.kubectl("create", "token", account["name"], "--namespace=default", "--duration=24h")
    config["users"][0]["user"] = {"token": token.stdout.strip()}
    file = cluster.directory / "benchmark.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


async def start_node(sandbox: Sandbox, name: str, lower_kubeconfig: Path | str, *flags: str) -> Process:
    """Start a virtual node of this name and wait until it is Ready."""
    process = await sandbox.start_virtual_node(
        f"--nodename={name}",
        f"--client-kubeconfig={lower_kubeconfig}",
        "--adopt-namespaces=*",
        "--log-level=warn",
        *flags,
        name=name,
        env={"KUBELET_PORT": "0"},
    )
    await until_ready(sandbox.upper, name)
    return process


async def until_ready(upper: Cluster, *names: str, seconds: int = 60) -> None:
    """Wait until Nodes exist and are Ready.

    Raises:
        SandboxError: not within so many seconds.
    """
    limit = f"--timeout={seconds}s"
    for name in names:
        for condition in ("create", "condition=Ready"):
            await upper.kubectl("wait", f"--for={condition}", f"node/{name}", limit, timeout=seconds + 30)


def entry(cluster: Cluster, **settings: Any) -> dict[str, Any]:
    """Return the configuration of a lower cluster, with virtual node ``vn-<cluster>`` unless ``nodes`` are given."""
    own = {} if "nodes" in settings else {"nodeName": f"vn-{cluster.name}"}
    return {"name": cluster.name, "kubeconfig": str(cluster.kubeconfig), **own, **settings}


async def start_nodes(
    sandbox: Sandbox, clusters: Sequence[Mapping[str, Any]], *, name: str = "virtual-node", **settings: Any
) -> Process:
    """Start one process for several lower clusters, and wait until their virtual nodes are Ready.

    Args:
        sandbox: the clusters.
        clusters: entries of the configuration.
        name: of the process and its configuration file.
        settings: further fields of the configuration.
    """
    document = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "kubelet": {"address": LOOPBACK, "port": 0},
        "clusters": list(clusters),
        **settings,
    }
    file = sandbox.directory / f"{name}.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    process = await sandbox.start_virtual_node("--config", str(file), "--log-level=warn", name=name)
    nodes = [node["name"] for one in clusters for node in one.get("nodes", [{"name": one.get("nodeName")}])]
    await until_ready(sandbox.upper, *nodes, seconds=300)
    return process


async def until(holds: Callable[[], Awaitable[bool]], *, seconds: float) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: not within so many seconds.
    """
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - what it waits for has no events
            await asyncio.sleep(0.1)
