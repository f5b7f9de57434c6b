"""ClusterProfiles for tests: the definition, a credential plugin, and the rights of the chart."""

from __future__ import annotations

import base64
import json
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm
from tests.workloads import manifest

FLEET = "fleet"
"""Namespace of the ClusterProfiles."""
ACCOUNT = "account.kubeconfig"
"""File in the folder of the upper cluster with the virtual node's account."""
_GROUP = "multicluster.x-k8s.io"
_SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
CRD = manifest(
    "CustomResourceDefinition",
    f"clusterprofiles.{_GROUP}",
    api="apiextensions.k8s.io/v1",
    metadata={"annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
    spec={
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {"plural": "clusterprofiles", "singular": "clusterprofile", "kind": "ClusterProfile"},
        "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": _SCHEMA}],
    },
)
"""Accepts every field, so that the tests can also write what the real schema refuses."""
_PLUGIN = """\
import json, os, pathlib, sys
spec = json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"]
name = spec["cluster"]["config"]["clusterName"]
print(pathlib.Path(sys.argv[1], pathlib.Path(name).name).read_text())
"""


def cluster_profile(
    cluster: Cluster, name: str, *, provider: str = "files", padding: str = "", **changes: Any
) -> dict[str, Any]:
    """Return a ClusterProfile of a cluster; changes replace fields of its ``cluster``."""
    extension = {"clusterName": cluster.name, "padding": padding}
    access = {
        "server": cluster.server,
        "certificate-authority-data": base64.b64encode(cluster.ca.read_bytes()).decode(),
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": extension}],
        **changes,
    }
    return manifest(
        "ClusterProfile",
        name,
        api=f"{_GROUP}/v1alpha1",
        metadata={"namespace": FLEET, "labels": {"virtual-node": "yes"}},
        spec={"clusterManager": {"name": "test"}},
        status={"accessProviders": [{"name": provider, "cluster": access}]},
    )


def field(name: str, value: Any) -> dict[str, Any]:
    """Return a field with a name that is no Python name."""
    return {name: value}


def write_provider(folder: Path, *clusters: Cluster) -> Path:
    """Write a plugin that prints the administrator's certificate of the named cluster; return the file of providers."""
    version = "client.authentication.k8s.io/v1"
    for cluster in clusters:
        user = json.loads(cluster.kubeconfig.read_text(encoding="utf-8"))["users"][0]["user"]
        pair = {
            f"client{part}Data": base64.b64decode(user[f"client-{part.lower()}-data"]).decode()
            for part in ("Certificate", "Key")
        }
        credential = {"apiVersion": version, "kind": "ExecCredential", "status": pair}
        (folder / cluster.name).write_text(json.dumps(credential), encoding="utf-8")
    plugin = folder / "plugin"
    plugin.write_text(f"#!{sys.executable}\n{_PLUGIN}", encoding="utf-8")
    plugin.chmod(stat.S_IRWXU)
    providers = folder / "providers.json"
    execution = {
        "apiVersion": version,
        "command": "./plugin",
        "args": [str(folder)],
        "provideClusterInfo": True,
    }
    providers.write_text(json.dumps({"providers": [{"name": "files", "execConfig": execution}]}), "utf-8")
    return providers


async def install_rights(sandbox: Sandbox, profiles: Mapping[str, Any]) -> Path:
    """Install the chart for its rights and policies; return a kubeconfig with the virtual node's account."""
    providers = json.loads(Path(profiles["providersFile"]).read_text(encoding="utf-8"))["providers"]
    values = {
        "webhook": {"enabled": False},
        "descheduler": {"enabled": False},
        "multiScheduler": {"scheduler": {"enabled": False}, "tls": {"enabled": True}},
        "virtualNode": {
            "clusters": [
                {"name": "profile-taken", "kubeconfig": "unused", "config": {"nodeName": "vn-lower1"}}
            ],
            "clusterProfiles": {
                **{name: value for name, value in profiles.items() if name != "providersFile"},
                "providers": providers,
            },
        },
    }
    upper = sandbox.upper
    await upper.kubectl("create", "namespace", NAMESPACE)
    await helm(
        sandbox, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--no-hooks", values=values
    )
    token = (await upper.kubectl("-n", NAMESPACE, "create", "token", f"{RELEASE}-virtual-node")).stdout
    config = json.loads(upper.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"token": token.strip()}
    path = upper.directory / ACCOUNT
    path.write_text(json.dumps(config), encoding="utf-8")
    return path
