"""Objects put into an installation of the chart before its removal, and the objects that remain afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.helm import NAMESPACE
from tests.clusters.pods.test_volumes import STATIC, claim, storage_class, volume
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, ready


async def read(cluster: Cluster, *arguments: str) -> dict[str, Any]:
    """Return the output of ``kubectl get`` with these arguments, an object or a list."""
    found: dict[str, Any] = json.loads((await cluster.kubectl("get", *arguments, "-o", "json")).stdout)
    return found


def names(listed: dict[str, Any]) -> list[str]:
    """Return kind and name of each object of a list."""
    return [f"{one['kind']}/{one['metadata']['name']}" for one in listed["items"]]


async def data(sandbox: Sandbox) -> Path:
    """Return a file that a pod has written to a volume of the real lower cluster, through an upper claim."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    folder = sandbox.directory / "vault"
    for cluster in (upper, lower):
        await cluster.apply(storage_class(STATIC, "kubernetes.io/no-provisioner"))
    await lower.apply(volume("vault", folder, "lower1-node", storage_class=STATIC))
    await upper.kubectl("wait", "--for=create", "pv/lower1-vault", "--timeout=60s", timeout=90)
    await upper.kubectl("create", "namespace", "vault")
    writer = labelled("writer", "echo kept > /data/file; exec sleep 3600")
    writer["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    writer["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    await create(upper, "vault", claim("data", STATIC), writer)
    await ready(upper, "vault", "writer")
    return folder / "file"


async def left_above(upper: Cluster) -> list[str]:
    """Return what an installation has left in the upper cluster. Dependents, such as pods, are deleted a moment later."""
    left = [name for name in names(await read(upper, "nodes")) if name != "Node/upper-node"]
    # The kubeconfigs are the user's: `lower-cluster register` made them, not the chart.
    automatic = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
    automatic |= {
        f"Secret/virtual-node-{name}{part}" for name in ("lower1", "lower2") for part in ("", "-viewer")
    }
    for kinds in (
        "deployments,daemonsets,statefulsets,jobs,services,configmaps,leases,roles,rolebindings,pdb,networkpolicies",
        "serviceaccounts,secrets,pods",
    ):
        left += [name for name in names(await read(upper, "-n", NAMESPACE, kinds)) if name not in automatic]
    for kinds in (
        "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,csidrivers,csr",
        "priorityclasses,persistentvolumes,validatingadmissionpolicies,validatingadmissionpolicybindings",
    ):
        found = (await read(upper, kinds))["items"]
        left += names({"items": [one for one in found if "virtual-node" in json.dumps(one)]})
    everywhere = names(await read(upper, "-A", "leases,roles,rolebindings,configmaps"))
    return left + [name for name in everywhere if "virtual-node" in name]


def labelled(name: str, script: str) -> dict[str, Any]:
    """Return a pod that has only the label for virtual nodes, and selects a real lower node."""
    made = pod(name, script)
    made["metadata"]["labels"]["virtual-pod"] = "true"
    made["spec"]["nodeSelector"] = {"pool": "real"}
    del made["spec"]["tolerations"]
    return made
