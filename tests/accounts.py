"""The accounts of the chart, with their rights and admission policies, for programs that tests run themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm

_COMPONENTS = ("virtualNode", "webhook", "descheduler", "multiScheduler", "swarm")


async def install_account(sandbox: Sandbox, component: str, **values: Any) -> Path:
    """Install the chart with one component without pods; return a kubeconfig that acts as the component's account."""
    others = {other: {"enabled": False} for other in _COMPONENTS if other != component}
    await helm(
        sandbox, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--create-namespace", "--no-hooks",
        values={**others, component: {"enabled": True, "replicas": 0, **values}},
    )  # fmt: skip
    return _kubeconfig(sandbox.upper, f"{RELEASE}-virtual-node-{component}")


async def grant_own_objects(cluster: Cluster, account: str, namespace: str) -> None:
    """Let an account keep its own objects in a namespace, as the chart does in the namespace of the release."""
    metadata = {"name": account, "namespace": namespace}
    kinds = {
        "": ["configmaps", "secrets"],
        "apps": ["controllerrevisions"],
        "coordination.k8s.io": ["leases"],
    }
    rules = [{"apiGroups": [group], "resources": names, "verbs": ["*"]} for group, names in kinds.items()]
    rbac = "rbac.authorization.k8s.io"
    await cluster.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
        },
    )


def _kubeconfig(cluster: Cluster, account: str) -> Path:
    """Write a kubeconfig by which the administrator acts as an account."""
    config = json.loads(cluster.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"]["as"] = f"system:serviceaccount:{NAMESPACE}:{account}"
    file = cluster.directory / f"{account}.kubeconfig"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file
