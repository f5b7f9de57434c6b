"""Manifests made of the table of rights: nobody grants by hand what ``check`` will ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller_runtime.rights import Right, rules

NAME = "virtual-node"


def cluster_role(rights: Iterable[Right], *, name: str = NAME) -> dict[str, Any]:
    """A ClusterRole that grants rights, one rule per group, set of verbs and set of names."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": NAME}},
        "rules": rules(rights),
    }


def namespace_cleaning_rule() -> dict[str, Any]:
    """What removing an empty namespace takes: to see that it is empty, whatever kinds the cluster has."""
    return {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]}


def account(namespace: str, *, name: str = NAME) -> list[dict[str, Any]]:
    """Namespace, ServiceAccount, token Secret and ClusterRoleBinding for a ClusterRole of the same name."""
    labels = {"app.kubernetes.io/name": NAME}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/service-account-token",
            "metadata": {
                "name": f"{name}-token",
                "namespace": namespace,
                "labels": labels,
                "annotations": {"kubernetes.io/service-account.name": name},
            },
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": labels},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]


def token_kubeconfig(*, cluster: str, server: str, ca: str, token: str) -> dict[str, Any]:
    """A kubeconfig of a server, its CA (base64 PEM) and a token."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": ca}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": NAME}}],
        "users": [{"name": NAME, "user": {"token": token}}],
    }


def kubeconfig_secret(name: str, namespace: str, text: str) -> dict[str, Any]:
    """The Secret for the upper cluster that holds a lower cluster's kubeconfig, under key ``kubeconfig``."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": NAME}},
        "stringData": {"kubeconfig": text},
    }
