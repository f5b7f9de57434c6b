"""ClusterProfiles become virtual nodes and disappear at run time, and hostile ones disturb nothing, on real API servers."""

from __future__ import annotations

import base64
import json
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from controller_runtime import resources
from controller_runtime.inventory.inventory import REASON
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.commands.demo import configuration
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from tests.e2e.test_inspect import least
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready
from virtual_node.config import file as config_file
from virtual_node.rights.daemon import upper as upper_rights

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]
FLEET, SHOP = "fleet", "shop"
NODE = "profile-tokyo"
_GROUP = "multicluster.x-k8s.io"
_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"clusterprofiles.{_GROUP}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {"plural": "clusterprofiles", "singular": "clusterprofile", "kind": "ClusterProfile"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
"""Accepts every field, so that the tests can also write what the real schema refuses."""
_PLUGIN = """\
import json, os, pathlib, sys
spec = json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"]
name = spec["cluster"]["config"]["clusterName"]
print(pathlib.Path(sys.argv[1], pathlib.Path(name).name).read_text())
"""


def _profile(
    cluster: Cluster, name: str, *, provider: str = "files", padding: str = "", **changes: Any
) -> dict[str, Any]:
    """Return a ClusterProfile of a cluster; changes replace fields of its ``cluster``."""
    access = {
        "server": cluster.server,
        "certificate-authority-data": base64.b64encode(cluster.ca.read_bytes()).decode(),
        "extensions": [
            {
                "name": "client.authentication.k8s.io/exec",
                "extension": {"clusterName": cluster.name, "padding": padding},
            }
        ],
        **changes,
    }
    return {
        "apiVersion": f"{_GROUP}/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {"name": name, "namespace": FLEET, "labels": {"virtual-node": "yes"}},
        "spec": {"clusterManager": {"name": "test"}},
        "status": {"accessProviders": [{"name": provider, "cluster": access}]},
    }


def _field(name: str, value: Any) -> dict[str, Any]:
    """Return a field with a name that is no Python name."""
    return {name: value}


def _write_provider(folder: Path, cluster: Cluster) -> Path:
    """Write a plugin that prints the administrator's certificate of a cluster; return the file of providers."""
    user = json.loads(cluster.kubeconfig.read_text(encoding="utf-8"))["users"][0]["user"]
    pair = {
        f"client{part}Data": base64.b64decode(user[f"client-{part.lower()}-data"]).decode()
        for part in ("Certificate", "Key")
    }
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": pair}
    (folder / cluster.name).write_text(json.dumps(credential), encoding="utf-8")
    plugin = folder / "plugin"
    plugin.write_text(f"#!{sys.executable}\n{_PLUGIN}", encoding="utf-8")
    plugin.chmod(stat.S_IRWXU)
    providers = folder / "providers.json"
    execution = {
        "apiVersion": credential["apiVersion"],
        "command": "./plugin",
        "args": [str(folder)],
        "provideClusterInfo": True,
    }
    providers.write_text(json.dumps({"providers": [{"name": "files", "execConfig": execution}]}), "utf-8")
    return providers


@dataclass(slots=True)
class World:
    """Lower cluster 1 is in the configuration file as ``profile-taken``; lower cluster 2 is only in the inventory."""

    sandbox: Sandbox
    process: Process
    address: str
    """Address of the process's health and metrics."""

    async def apply(self, *profiles: dict[str, Any]) -> None:
        """Create or change ClusterProfiles."""
        await self.sandbox.upper.apply(*profiles)

    async def page(self, path: str) -> str:
        """Return a page of the process's health server."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}{path}") as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def refused(self) -> dict[str, str]:
        """Return the messages of the events about refused ClusterProfiles, by name."""
        found = await self.sandbox.upper.api.read(resources.EVENTS.path(namespace=FLEET))
        return {
            one["involvedObject"]["name"]: one["message"] for one in found["items"] if one["reason"] == REASON
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Both lower clusters, the CRD without ClusterProfiles, and a virtual-node process with exactly its rights."""
    async with Sandbox(lower=2, kwok_nodes=1) as sandbox:
        await sandbox.upper.apply(_CRD)
        await make_namespace(sandbox.upper, FLEET)
        await make_namespace(sandbox.upper, SHOP)
        settings = configuration(sandbox)
        settings["clusters"] = [{**settings["clusters"][0], "name": "profile-taken"}]
        settings["leaseDuration"] = 12
        settings["clusterProfiles"] = {
            "namespace": FLEET,
            "labelSelector": "virtual-node=yes",
            "providersFile": str(_write_provider(tmp_path_factory.mktemp("providers"), sandbox.lower[1])),
            "defaults": {"labels": {"source": "inventory"}, "namespaces": {"prefix": "upper-"}},
        }
        rights = upper_rights(config_file.parse(json.dumps(settings)))
        settings["kubeconfig"] = kubeconfig = await least(sandbox.upper, rights)
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")
        (port,) = free_ports(1)
        address = f"{LOOPBACK}:{port}"
        process = await sandbox.start_virtual_node(
            f"--config={file}", f"--metrics-addr={address}", f"--kubeconfig={kubeconfig}"
        )
        await node_ready(sandbox.upper, "vn-lower1")
        yield World(sandbox, process, address)


async def test_profiles_come_and_go_at_run_time(world: World):
    """A pod runs in the cluster of a ClusterProfile. Without the label the node is lost and the pod stays; with it, it is back."""
    upper, lower = world.sandbox.upper, world.sandbox.lower[1]
    await world.apply(_profile(lower, "tokyo"))
    await node_ready(upper, NODE)
    node = await get(upper, "", "node", NODE)
    assert node["metadata"]["labels"]["source"] == "inventory"
    await create(upper, SHOP, _pod())
    await ready(upper, SHOP, "web")

    async def status() -> str:
        conditions = (await get(upper, "", "node", NODE))["status"]["conditions"]
        return next((str(one["status"]) for one in conditions if one["type"] == "Ready"), "")

    await upper.kubectl("-n", FLEET, "label", "clusterprofile", "tokyo", "virtual-node-")
    await becomes(status, "Unknown", what="the removed cluster's node has no heartbeat")
    assert len((await get(lower, f"upper-{SHOP}", "pods"))["items"]) == 1
    await node_ready(upper, "vn-lower1")
    await world.apply(_profile(lower, "tokyo"))
    await node_ready(upper, NODE)
    await ready(upper, SHOP, "web")


async def test_hostile_profiles_disturb_nothing_and_are_reported(world: World):
    """Each is named by an event; the process stays ready, and both working clusters stay Ready."""
    upper, lower = world.sandbox.upper, world.sandbox.lower[1]
    await world.apply(_profile(lower, "tokyo"))
    await node_ready(upper, NODE)
    before = await _started(world)
    hostile = {
        "taken": _profile(lower, "taken"),
        "url": _profile(lower, "url", server="http://169.254.169.254"),
        "broken": _profile(lower, "broken", server="https://[::1"),
        "unverified": _profile(lower, "unverified", **_field("insecure-skip-tls-verify", True)),
        "reads": _profile(lower, "reads", **_field("certificate-authority", "/etc/passwd")),
        "unknown": _profile(lower, "unknown", provider="nobody"),
        "huge": _profile(lower, "huge", padding="x" * 300_000),
        "x" * 200: _profile(lower, "x" * 200),
        "no.label": _profile(lower, "no.label"),
        "types": {**_profile(lower, "types"), "status": [1]},
    }
    # Their form is right, so they start, fail and are tried again alone.
    failing = [
        _profile(lower, "dead", server="https://127.0.0.1:1"),
        _profile(upper, "upper"),
        _profile(lower, "impostor", **_field("certificate-authority-data", base64.b64encode(b"no").decode())),
    ]
    for profile in (*hostile.values(), *failing):
        await upper.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(profile))

    async def named() -> list[str]:
        return sorted(await world.refused())

    await becomes(named, sorted(hostile), what="every hostile ClusterProfile has an event")
    reasons = await world.refused()
    assert "already has a lower cluster" in reasons["taken"]
    assert "names no provider" in reasons["unknown"]
    assert "more than 65,536 bytes" in reasons["huge"]
    assert f'virtual_node_cluster_profiles{{state="refused"}} {len(hostile)}.0' in await world.page(
        "/metrics"
    )
    await world.page("/readyz")
    assert await _started(world) == before
    for name in ("vn-lower1", NODE):
        await node_ready(upper, name)
    names = [one["metadata"]["name"] for one in (await get(upper, "", "nodes"))["items"]]
    assert sorted(names) == sorted(["vn-lower1", NODE])

    async def pod_runs() -> bool:
        found = await get(upper, SHOP, "pods")
        return all(one["status"].get("phase") == "Running" for one in found["items"])

    await eventually(pod_runs, what="the pods run")


async def _started(world: World) -> str:
    """Return when the process started, from its metrics."""
    return next(
        line
        for line in (await world.page("/metrics")).splitlines()
        if line.startswith("process_start_time_seconds")
    )


def _pod() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "c", "image": "busybox"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
