"""Attacks on real API servers: tenants with the rights of ``edit`` in their namespaces, on objects of others.

H1, H6 and M1 are findings; the last test is the upgrade of an installation that used namespaces of the same
name.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.process import Process
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, eventually, get, make_namespace, node_ready, ready

pytestmark = pytest.mark.e2e
SHORT, LONG, OLD = "vn-a", "vn-a-b", "vn-old"
ENFORCE, WARN = "pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/warn"
SETTINGS = {"volumes": [{"name": "v", "configMap": {"name": "settings"}}]}


def configuration(sandbox: Sandbox, node: str, **namespaces: Any) -> Path:
    """Write the file of a virtual-node process for the only lower cluster; return its path."""
    lower = sandbox.lower[0]
    cluster = {"name": node, "kubeconfig": str(lower.kubeconfig), "nodeName": node, "namespaces": namespaces}
    whole = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "kubeconfig": str(sandbox.upper.kubeconfig),
        "kubelet": {"port": 0, "nodeIp": LOOPBACK},
        "clusters": [cluster],
    }
    file = sandbox.directory / f"{node}.yaml"
    file.write_text(json.dumps(whole), encoding="utf-8")
    return file


async def start(sandbox: Sandbox, node: str, **namespaces: Any) -> Process:
    """Start a virtual node with these namespace settings."""
    file = configuration(sandbox, node, **namespaces)
    process = await sandbox.start_virtual_node("--config", str(file), name=node)
    await node_ready(sandbox.upper, node)
    return process


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(simulated: Lend) -> AsyncIterator[Sandbox]:
    """Two processes for one lower cluster, with prefixes that map two upper namespaces to one."""
    async with simulated(lower=1) as sandbox:
        await start(sandbox, SHORT, prefix="a-", adopt=["a-native"])
        await start(sandbox, LONG, prefix="a-b-")
        yield sandbox


async def tenant(upper: Cluster, namespace: str, name: str, **labels: str) -> None:
    """Create a namespace with a user who has ``edit`` in it and no other rights."""
    await make_namespace(upper, namespace, labels=labels)
    await upper.kubectl(
        "-n", namespace, "create", "rolebinding", name, "--clusterrole=edit", f"--user={name}"
    )

    async def may() -> bool:
        done = await upper.kubectl(
            f"--as={name}", "-n", namespace, "auth", "can-i", "patch", "pods", check=False
        )
        return done.returncode == 0

    await eventually(may, what=f"{name} may edit {namespace}")


async def apply(cluster: Cluster, user: str, namespace: str, *objects: dict[str, Any]) -> None:
    """Create objects as a user."""
    for one in objects:
        await cluster.kubectl(f"--as={user}", "-n", namespace, "create", "-f", "-", input=json.dumps(one))


async def events(cluster: Cluster, namespace: str, name: str) -> str:
    """Return reasons and messages of an object's events."""
    found = (await get(cluster, namespace, "events", fields=f"involvedObject.name={name}"))["items"]
    return "".join(f"{one['reason']}: {one['message']}\n" for one in found)


def secret(value: str) -> dict[str, Any]:
    """Return a tenant's Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "stringData": {"of": value}}


async def test_tenant_cannot_take_over_an_unmanaged_pod_with_forged_labels(clusters: Sandbox):
    """H1: the label names the unmanaged pod's live uid. Only the tenant's own pod fails, and only that is deleted."""
    upper, lower = clusters.upper, clusters.lower[0]
    await make_namespace(lower, "a-native")
    native = pod("web", "sleep 3600", node="")
    del native["spec"]["nodeSelector"]
    await create(lower, "a-native", native)
    await ready(lower, "a-native", "web")
    before = await get(lower, "a-native", "pod", "web")
    await tenant(upper, "native", "mallory")
    await apply(upper, "mallory", "native", pod("web", "sleep 3600", node=SHORT))

    async def conflict() -> bool:
        return "NameConflict" in await events(upper, "native", "web")

    await eventually(conflict, what="the name conflict is reported")
    uid = (await get(upper, "native", "pod", "web"))["metadata"]["uid"]
    cluster_id = (await get(upper, "", "namespace", "kube-system"))["metadata"]["uid"]
    await upper.kubectl(
        "--as=mallory", "-n", "native", "annotate", "pod", "web",
        f"virtual-node.io/lower-uid={before['metadata']['uid']}/{uid}",
        f"virtual-node.io/made-for={cluster_id}/native/web/{uid}",
    )  # fmt: skip

    async def failed() -> bool:
        return bool((await get(upper, "native", "pod", "web"))["status"]["phase"] == "Failed")

    await eventually(failed, what="the pod with the forged mark fails")
    assert (await upper.kubectl("-n", "native", "exec", "web", "--", "true", check=False)).returncode
    await upper.kubectl("--as=mallory", "-n", "native", "delete", "pod", "web", "--timeout=60s", timeout=90)
    after = await get(lower, "a-native", "pod", "web")
    for field in ("labels", "annotations", "uid", "deletionTimestamp"):
        assert after["metadata"].get(field) == before["metadata"].get(field)
    assert after["spec"] == before["spec"]


async def test_tenants_secret_does_not_overwrite_another_tenants_copy(clusters: Sandbox):
    """H6: prefixes a- and a-b- map b-x and x to one lower namespace, which belongs to the first one."""
    upper, lower = clusters.upper, clusters.lower[0]
    await tenant(upper, "b-x", "alice")
    await tenant(upper, "x", "bob")
    mounted = {"volumes": [{"name": "v", "secret": {"secretName": "db"}}]}
    await apply(upper, "alice", "b-x", secret("alice"), pod("one", "sleep 3600", node=SHORT, **mounted))
    await ready(upper, "b-x", "one")
    before = await get(lower, "a-b-x", "secret", "db")
    await apply(upper, "bob", "x", secret("bob"), pod("two", "sleep 3600", node=LONG, **mounted))

    async def is_reported() -> bool:
        return "NamespaceConflict: Namespace a-b-x" in await events(upper, "x", "two")

    await eventually(is_reported, what="the conflict in the second tenant's events")
    await upper.kubectl("--as=bob", "-n", "x", "delete", "pod/two", "secret/db", "--timeout=60s", timeout=90)
    assert await get(lower, "a-b-x", "secret", "db") == before
    names = {one["metadata"]["name"] for one in (await get(lower, "a-b-x", "pods"))["items"]}
    assert names == {"one"}


async def test_pod_security_label_of_lower_administrator_stays(clusters: Sandbox):
    """M1: the upper namespace has a weaker level, later none."""
    upper, lower = clusters.upper, clusters.lower[0]
    await tenant(upper, "secured", "carol", **{ENFORCE: "baseline"})
    await apply(upper, "carol", "secured", pod("web", "sleep 3600", node=SHORT))
    await ready(upper, "secured", "web")
    await lower.kubectl("label", "namespace", "a-secured", f"{ENFORCE}=restricted", "--overwrite")

    async def labels() -> dict[str, str]:
        found: dict[str, str] = (await get(lower, "", "namespace", "a-secured"))["metadata"]["labels"]
        return found

    for change, warn in (
        ([f"{ENFORCE}=privileged", f"{WARN}=baseline"], "baseline"),
        ([f"{ENFORCE}-", f"{WARN}=restricted"], "restricted"),
    ):
        await upper.kubectl("label", "namespace", "secured", *change, "--overwrite")

        async def followed(wanted: str = warn) -> bool:
            return (await labels()).get(WARN) == wanted

        await eventually(followed, what="a label of ours follows")
        assert (await labels())[ENFORCE] == "restricted"


async def test_upgrade_keeps_running_pods_of_namespaces_no_longer_adopted(clusters: Sandbox):
    """adopt: true, as in earlier releases; then the default; then a list."""
    upper, lower = clusters.upper, clusters.lower[0]
    await make_namespace(lower, "shared")
    await make_namespace(upper, "shared")
    await upper.kubectl("-n", "shared", "create", "configmap", "settings", "--from-literal=a=1")
    process = await start(clusters, OLD, adopt=True)
    await create(upper, "shared", pod("old", "sleep 3600", node=OLD, **SETTINGS))
    await ready(upper, "shared", "old")
    uid = (await get(lower, "shared", "pod", "old"))["metadata"]["uid"]
    await process.stop()

    process = await start(clusters, OLD)
    await upper.kubectl(
        "-n", "shared", "patch", "configmap", "settings", "--type=merge", "-p", '{"data":{"a":"2"}}'
    )

    async def followed() -> bool:
        return bool((await get(lower, "shared", "configmap", "settings"))["data"] == {"a": "2"})

    await eventually(followed, what="the running pod's ConfigMap follows")
    await create(upper, "shared", pod("new", "sleep 3600", node=OLD, **SETTINGS))

    async def is_reported() -> bool:
        messages = await events(upper, "shared", "new")
        return "was not created by virtual-node" in messages and "clusters[].namespaces.adopt" in messages

    await eventually(is_reported, what="the new pod's event names the setting")
    status = (await get(upper, "shared", "pod", "new"))["status"]
    (admitted,) = [one for one in status["conditions"] if one["type"] == "virtual-node.io/Admitted"]
    assert (admitted["status"], admitted["reason"]) == ("False", "NotAllowed")
    assert (await get(upper, "shared", "pod", "old"))["status"]["phase"] == "Running"
    inspected = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", "inspect", f"--config={clusters.directory / f'{OLD}.yaml'}",
        "-o", "json", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await inspected.communicate()
    (finding,) = [one for one in json.loads(out)["findings"] if one["check"] == "adopt"]
    assert "[shared]" in finding["nextStep"]

    # Applied live.
    configuration(clusters, OLD, adopt=["shared"])
    await ready(upper, "shared", "new")
    assert (await get(lower, "shared", "pod", "old"))["metadata"]["uid"] == uid
    await upper.kubectl("-n", "shared", "delete", "pods", "--all", "--timeout=60s", timeout=90)
    await process.stop()
