"""Names of peers if the lower namespace or the lower cluster's domain differs from the upper one."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds.images import Image
from hack.sandbox.cluster import LOOPBACK
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, get, make_namespace, node_ready, ready
from virtual_node.rights import name_server

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
NODE = "vn-names"
OTHER = "vn-other-domain"
DOMAIN = "app.pre"
LOWER_DOMAIN = "lower.example"
SPACES = ("f-shop", "f-other", "f-mapped")
MESH = "f-mesh"


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


async def name_server_of(file: Path, config: dict[str, Any], upper: Cluster, *flags: str) -> str:
    """Write a configuration, create the name server of its only cluster, and return its address."""
    file.write_text(json.dumps(config), encoding="utf-8")
    (cluster,) = config["clusters"]
    said = await command(
        "lower-cluster", "dns", cluster["name"], "--config", str(file), "--kubeconfig", str(upper.kubeconfig),
        "--client-kubeconfig", cluster["kubeconfig"], "--apply", *flags,
    )  # fmt: skip
    found = re.search(r"(\S+) answers for", said)
    assert found, said
    return found[1]


def configuration(upper: Cluster) -> dict[str, Any]:
    """Return a configuration without clusters."""
    return {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "ClusterSetConfiguration",
        "kubeconfig": str(upper.kubeconfig),
        "kubelet": {"port": 0, "nodeIP": LOOPBACK},
    }


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
    base = configuration(upper)
    other = base | {"clusterDomain": DOMAIN, "clusters": [{**cluster, "name": "domain"}]}
    second = await name_server_of(sandbox.directory / "domain.yaml", other, upper)
    namespaces = {"prefix": "up-", "map": {"f-mapped": "f-lower"}, "allowed": ["f-*"], "labels": ["team"]}
    cluster |= {"namespaces": namespaces}
    file = sandbox.directory / "names.yaml"
    first = await name_server_of(file, {**base, "clusters": [cluster]}, upper)
    for name in SPACES:
        await make_namespace(upper, name)
    await upper.kubectl("label", "namespace", "f-shop", "team=x")
    warned = await rows("check", "--config", str(file))
    assert warned["names", "names"][0].startswith("warning: namespaces.prefix and namespaces.map change")
    cluster["dns"] = {"servers": [first]}
    file.write_text(json.dumps({**base, "clusters": [cluster]}), encoding="utf-8")
    process = await sandbox.start_virtual_node("--config", str(file), name="virtual-node-names")
    try:
        await node_ready(upper, NODE)
        yield first, second
    finally:
        for name in (*SPACES, MESH):
            await upper.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
        await upper.kubectl("delete", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={NODE}")
        await process.stop()
        await upper.kubectl("delete", "node", NODE)
        instances = "app.kubernetes.io/component=dns"
        await lower.kubectl(
            "-n", "virtual-node", "delete", "deploy,service,configmap,pdb", "-l", instances, "--wait=false"
        )


async def rows(*arguments: str) -> dict[tuple[str, str], tuple[str, bool]]:
    """Return detail and result of the rows of ``check``, by cluster and check."""
    said = await command(*arguments, "-o", "json")
    found = json.loads(said[said.index("{") :])
    return {(one["cluster"], one["check"]): (one["detail"], one["ok"]) for one in found["findings"]}


async def all_answered(upper: Cluster, namespace: str, wanted: Mapping[str, str]) -> None:
    """Wait until the output of each command in pod ``db-0`` has its text."""
    script = "; echo ==; ".join(wanted)

    async def unanswered() -> list[str]:
        """Return the commands whose output is not as wanted."""
        exec_ = ("-n", namespace, "exec", "db-0", "--", "sh", "-c", script)
        outputs = (await upper.kubectl(*exec_, check=False)).stdout.split("==")
        return [
            one for one, said in zip(wanted, [*outputs, *wanted], strict=False) if wanted[one] not in said
        ]

    await becomes(unanswered, [], what="every name is answered")


async def test_pods_find_peers_by_names_of_the_upper_cluster(
    sandbox: Sandbox, upper: Cluster, servers: tuple[str, str]
) -> None:
    """Short and full names, with a stranger's Service of the same name, SRV records, and reverse lookups."""
    lower = sandbox.lower[0]
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
    first, second = servers
    wanted = {
        "ping -c1 -W1 db-0.db": own,
        "ping -c1 -W1 db-0.db.f-shop.svc": own,
        "ping -c1 -W1 db-0.db.f-shop.svc.cluster.local": own,
        "ping -c1 -W1 db-0.db.f-shop.svc.cluster.local.": own,
        "ping -c1 -W1 api.f-other": other,
        "ping -c1 -W1 api.f-other.svc.cluster.local": other,
        "ping -c1 -W1 api.f-mapped.svc": mapped,
        "nslookup -type=srv _http._tcp.db.f-shop.svc.cluster.local": " db-0.db.f-shop.svc.cluster.local",
        f"nslookup {own}": "name = db-0.db.f-shop.svc.cluster.local",
        f"nslookup api.up-f-other.svc.{DOMAIN} {second}": f"api.up-f-other.svc.{DOMAIN}\nAddress: {other}",
        f"nslookup www.example.com.{DOMAIN} {second}": "NXDOMAIN",
    }
    await all_answered(upper, "f-shop", wanted)
    passed = await rows("check", "--config", str(sandbox.directory / "names.yaml"))
    detail, ok = passed["names", "names"]
    assert ok
    assert detail.startswith(f"{first} (virtual-node/virtual-node-dns-")


@pytest.mark.usefixtures("servers")
async def test_pods_find_upper_names_in_a_cluster_with_another_domain(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """The lower DNS knows no name of the upper domain. Its own domain and other names are still answered."""
    lower, node = sandbox.lower[0], sandbox.real_node
    assert node is not None
    lower_dns = f"{lower.service_ip}53"
    dns = await node.services.serve_domain(LOWER_DOMAIN, address=lower_dns)
    cluster: dict[str, Any] = {"name": "other", "kubeconfig": str(lower.kubeconfig), "nodeName": OTHER}
    config = {**configuration(upper), "clusters": [cluster]}
    file = sandbox.directory / "other-domain.yaml"
    flags = ("--lower-domain", LOWER_DOMAIN, "--lower-dns", lower_dns)
    cluster["dns"] = {"servers": [await name_server_of(file, config, upper, *flags)]}
    file.write_text(json.dumps(config), encoding="utf-8")
    process = await sandbox.start_virtual_node("--config", str(file), name="virtual-node-domain")
    try:
        await node_ready(upper, OTHER)
        extra = {"hostname": "db-0", "subdomain": "db", "metadata": {"labels": {"app": "db"}}}
        peers = service("db", clusterIP="None"), service("api"), pod("db-0", "sleep 900", node=OTHER, **extra)
        await create(upper, namespace, *peers)
        await ready(upper, namespace, "db-0")
        own = (await get(upper, namespace, "pod", "db-0"))["status"]["podIP"]
        api = (await get(lower, namespace, "service", "api"))["spec"]["clusterIP"]
        wanted = {
            f"nslookup api.{namespace}.svc.cluster.local": f"cluster.local\nAddress: {api}",
            f"ping -c1 -W1 db-0.db.{namespace}.svc.cluster.local": own,
            "ping -c1 -W1 db-0.db": own,
            f"nslookup {own}": f"name = db-0.db.{namespace}.svc.cluster.local",
            f"nslookup api.{namespace}.svc.{LOWER_DOMAIN}": f"{LOWER_DOMAIN}\nAddress: {api}",
            f"nslookup api.{namespace}.svc.cluster.local {lower_dns}": "NXDOMAIN",
            "nslookup www.example.com": "NXDOMAIN",
        }
        await all_answered(upper, namespace, wanted)
    finally:
        await upper.kubectl("-n", namespace, "delete", "pods", "--all", "--grace-period=1")
        await process.stop()
        sandbox.processes.remove(process)
        await upper.kubectl("delete", "node", OTHER)
        await dns.kill()
        await lower.kubectl("-n", "kube-system", "delete", "service,endpointslice", "other-dns")


@pytest.mark.parametrize("node", [NODE, SIMULATED])
@pytest.mark.usefixtures("servers")
async def test_affinity_terms_select_pods_of_upper_namespaces(upper: Cluster, node: str) -> None:
    """By name, by the label with the name and by another label, with a prefix and without; other labels select none."""
    labels = {"labels": {"app": node}}
    await create(upper, "f-shop", pod(f"target-{node}", "sleep 900", node=node, metadata=labels))
    await ready(upper, "f-shop", f"target-{node}")
    terms: dict[str, dict[str, Any]] = {
        "name": {"namespaces": ["f-shop"]},
        "metadata": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "f-shop"}}},
        "team": {"namespaceSelector": {"matchLabels": {"team": "x"}}},
        "none": {"namespaceSelector": {"matchLabels": {"team": "y"}}},
    }
    for name, term in terms.items():
        term |= {"labelSelector": {"matchLabels": {"app": node}}, "topologyKey": "kubernetes.io/hostname"}
        kind = "requiredDuringSchedulingIgnoredDuringExecution"
        affinity = {"podAffinity": {kind: [term]}}
        await create(upper, "f-other", pod(f"{name}-{node}", "sleep 900", node=node, affinity=affinity))
    for name in ("name", "metadata", "team"):
        await ready(upper, "f-other", f"{name}-{node}")
    assert (await get(upper, "f-other", "pod", f"none-{node}"))["status"]["phase"] == "Pending"


@pytest.mark.usefixtures("servers")
async def test_labels_of_upper_namespaces_follow(sandbox: Sandbox, upper: Cluster) -> None:
    """When the namespace is created, and when the label changes or is removed; others do not follow."""
    lower = sandbox.lower[0]

    async def labels() -> dict[str, str]:
        found = (await get(lower, "", "namespace", "up-f-mesh"))["metadata"]["labels"]
        return {key: value for key, value in found.items() if key in {"team", "env"}}

    await make_namespace(upper, MESH)
    await upper.kubectl("label", "namespace", MESH, "team=x", "env=prod")
    await create(upper, MESH, pod("web", "sleep 900", node=NODE))
    await ready(upper, MESH, "web")
    await becomes(labels, {"team": "x"}, what="the label is in the lower cluster")
    await upper.kubectl("label", "namespace", MESH, "team=z", "--overwrite")
    await becomes(labels, {"team": "z"}, what="the label has the new value")
    await upper.kubectl("label", "namespace", MESH, "team-")
    await becomes(labels, {}, what="the label is removed")
