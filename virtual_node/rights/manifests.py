"""Manifests from the tables of permissions, so that they grant exactly what ``check`` tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller_runtime.rights import Right, rules

NAME = "virtual-node"
_LABELS = {"app.kubernetes.io/name": NAME}
_RBAC = "rbac.authorization.k8s.io"
VIEWER = f"{NAME}-viewer"
"""Name of the read-only account for the multi-scheduler."""
ACCOUNTS = {NAME: "", VIEWER: "-viewer"}
"""Maps each account in the lower cluster to the suffix of its Secret's name in the upper cluster."""


def secret_name(cluster: str, account: str = NAME) -> str:
    """Return the name of the Secret with the kubeconfig of an account of a lower cluster."""
    return f"virtual-node-{cluster}{ACCOUNTS[account]}"


def cluster_role(rights: Iterable[Right], *, name: str = NAME) -> dict[str, Any]:
    """Return a ClusterRole that grants rights, with one rule per group, set of verbs and set of names."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": _LABELS},
        "rules": rules(rights),
    }


def namespace_cleaning_rule() -> dict[str, Any]:
    """Return the rule needed to delete empty namespaces, because listing all resources shows if one is empty."""
    return {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]}


def account(namespace: str, *, name: str = NAME) -> list[dict[str, Any]]:
    """Return a Namespace and, in it, a ServiceAccount that is bound to the ClusterRole of the same name."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": _LABELS}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace, "labels": _LABELS},
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": _LABELS},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]


def renewal(namespace: str, rights: Iterable[Right]) -> list[dict[str, Any]]:
    """Return Role and RoleBinding with which the account ``NAME`` renews tokens of its namespace's accounts."""
    metadata = {"name": f"{NAME}-tokens", "namespace": namespace, "labels": _LABELS}
    return [
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules(rights)},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
        },
    ]


def legacy_token(namespace: str, *, name: str = NAME) -> dict[str, Any]:
    """Return a Secret that the lower cluster fills with a never-expiring token of the account."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": f"{name}-token",
            "namespace": namespace,
            "labels": _LABELS,
            "annotations": {"kubernetes.io/service-account.name": name},
        },
    }


def token_kubeconfig(*, cluster: str, server: str, ca: str, token: str = "") -> dict[str, Any]:
    """Return a kubeconfig with server, CA (base64 PEM) and token; empty token: read from file ``token`` beside it."""
    user = {"token": token} if token else {"tokenFile": "token"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": ca}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": NAME}}],
        "users": [{"name": NAME, "user": user}],
    }


def kubeconfig_secret(name: str, namespace: str, text: str, *, token: str = "") -> dict[str, Any]:
    """Return the upper Secret with a lower cluster's ``kubeconfig`` and, unless empty, the ``token`` to renew."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": _LABELS},
        "stringData": {"kubeconfig": text, **({"token": token} if token else {})},
    }
