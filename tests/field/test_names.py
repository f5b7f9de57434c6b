"""Names of peers if the lower namespace or the lower cluster's domain differs from the upper one."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds.images import Image
from hack.sandbox.cluster import LOOPBACK
from tests.e2e.conftest import create, eventually, get, make_namespace, node_ready, pod, ready
from virtual_node.commands.common import name_server

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
NODE = "vn-names"
DOMAIN = "app.pre"


def service(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Service for the pods labelled ``app=name``."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}], **spec},
    }


async def command(*arguments: str) -> str:
    """Run a command of virtual-node; return its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return output.decode()


async def name_server_of(file: Path, config: dict[str, Any], upper: Cluster) -> str:
    """Write a configuration, create the name server of its only cluster, and return its address."""
    file.write_text(json.dumps(config), encoding="utf-8")
    (cluster,) = config["clusters"]
    said = await command(
        "lower-cluster", "dns", cluster["name"], "--config", str(file), "--kubeconfig", str(upper.kubeconfig),
        "--client-kubeconfig", cluster["kubeconfig"], "--apply",
    )  # fmt: skip
    found = re.search(r"(\S+) answers for", said)
    assert found, said
    return found[1]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers(sandbox: Sandbox) -> AsyncIterator[tuple[str, str]]:
    """Run a virtual node with a prefix and a name server; return it, and a name server for another domain alone."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    assert sandbox.real_node is not None
    coredns = Image(
        (name_server.IMAGE,), files={"coredns": sandbox.binaries["coredns"]}, entrypoint=["/coredns"]
    )
    await asyncio.to_thread(sandbox.real_node.import_images, [coredns])
    cluster: dict[str, Any] = {"name": "names", "kubeconfig": str(lower.kubeconfig), "nodeName": NODE}
    base = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "ClusterSetConfiguration",
        "kubeconfig": str(upper.kubeconfig),
        "kubelet": {"port": 0, "nodeIP": LOOPBACK},
    }
    other = base | {"clusterDomain": DOMAIN, "clusters": [{**cluster, "name": "domain"}]}
    second = await name_server_of(sandbox.directory / "domain.yaml", other, upper)
    cluster |= {"namespaces": {"prefix": "up-", "map": {"f-mapped": "f-lower"}, "allowed": ["f-*"]}}
    file = sandbox.directory / "names.yaml"
    first = await name_server_of(file, {**base, "clusters": [cluster]}, upper)
    cluster["dns"] = {"servers": [first]}
    file.write_text(json.dumps({**base, "clusters": [cluster]}), encoding="utf-8")
    process = await sandbox.start_virtual_node("--config", str(file), name="virtual-node-names")
    try:
        await node_ready(upper, NODE)
        yield first, second
    finally:
        for name in ("f-shop", "f-other", "f-mapped"):
            await upper.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
        await upper.kubectl("delete", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={NODE}")
        await process.stop()
        await upper.kubectl("delete", "node", NODE)


async def output_of(upper: Cluster, script: str) -> str:
    """Return the output of a shell command in the client pod."""
    return (await upper.kubectl("-n", "f-shop", "exec", "db-0", "--", "sh", "-c", script, check=False)).stdout


async def test_pods_find_peers_by_names_of_the_upper_cluster(
    sandbox: Sandbox, upper: Cluster, servers: tuple[str, str]
) -> None:
    """Short and full names, with a stranger's Service of the same name, SRV records, and reverse lookups."""
    lower = sandbox.lower[0]
    for name in ("f-shop", "f-other", "f-mapped"):
        await make_namespace(upper, name)
    await make_namespace(lower, "f-other")
    await create(lower, "f-other", service("api"))
    extra = {"hostname": "db-0", "subdomain": "db", "metadata": {"labels": {"app": "db"}}}
    await create(
        upper, "f-shop", service("db", clusterIP="None"), pod("db-0", "sleep 900", node=NODE, **extra)
    )
    for name in ("f-other", "f-mapped"):
        labels = {"labels": {"app": "api"}}
        await create(upper, name, service("api"), pod("api", "sleep 900", node=NODE, metadata=labels))
    await ready(upper, "f-shop", "db-0")
    await ready(upper, "f-other", "api")
    await ready(upper, "f-mapped", "api")
    own = (await get(upper, "f-shop", "pod", "db-0"))["status"]["podIP"]
    other = (await get(lower, "up-f-other", "service", "api"))["spec"]["clusterIP"]
    mapped = (await get(lower, "f-lower", "service", "api"))["spec"]["clusterIP"]
    print(await output_of(upper, "cat /etc/resolv.conf"))
    for name, address in {
        "db-0.db": own,
        "db-0.db.f-shop.svc": own,
        "db-0.db.f-shop.svc.cluster.local": own,
        "db-0.db.f-shop.svc.cluster.local.": own,
        "api.f-other": other,
        "api.f-other.svc.cluster.local": other,
        "api.f-mapped.svc": mapped,
    }.items():

        async def resolves(name: str = name, address: str = address) -> bool:
            return address in await output_of(upper, f"ping -c1 -W1 {name}")

        await eventually(resolves, what=f"{name} is {address}")
    srv = await output_of(upper, "nslookup -type=srv _http._tcp.db.f-shop.svc.cluster.local")
    print(srv)
    print(await output_of(upper, f"nslookup {own}"))
    print(await output_of(upper, f"nslookup api.f-other.svc.{DOMAIN} {servers[1]}"))
    print(await output_of(upper, f"nslookup -type=ptr {other} {servers[1]}"))
    print(await output_of(upper, "nslookup www.example.com"))
    print(await output_of(upper, "nslookup kubernetes.default.svc.cluster.local"))
    print(await output_of(upper, f"nslookup kubernetes.default.svc.app.pre {servers[1]}"))
    assert 0
