"""Manages virtual-node's accounts in a lower cluster and the upper Secrets with their kubeconfigs."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from controller_runtime import resources
from controller_runtime.client.client import Client, find
from controller_runtime.errors import AlreadyExists, ConfigError
from controller_runtime.resources import Resource
from controller_runtime.rights import Right
from virtual_node.commands.common import output
from virtual_node.commands.lower_cluster import waiting
from virtual_node.rights import daemon, manifests

USAGE_SOURCES: Mapping[str, tuple[Right, ...]] = {
    "None": (),
    "MetricsAPI": daemon.LOWER_VIEWER_METRICS_API,
    "Summary": daemon.LOWER_VIEWER_KUBELETS,
    "Resource": daemon.LOWER_VIEWER_KUBELETS,
}
"""Maps the source of lower nodes' usage to the rights that the multi-scheduler's account needs for it."""
KINDS = {
    "Namespace": resources.NAMESPACES,
    "ServiceAccount": resources.SERVICE_ACCOUNTS,
    "Secret": resources.SECRETS,
    "ClusterRole": Resource(
        "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False
    ),
    "ClusterRoleBinding": Resource(
        "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
    ),
    "Role": Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    "RoleBinding": Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
}
_FILLED_SECONDS = 30
_LABEL = "app.kubernetes.io/name"


def objects(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the objects of both accounts: the virtual node's, and the multi-scheduler's read-only one.

    Args:
        options: ``account_namespace``, ``follow``, ``keep_namespaces``, ``legacy_token``, ``resource_claims``,
            ``shared_volumes`` and ``usage_source`` of the command line.
    """
    namespace = options.account_namespace
    rights = daemon.lower(
        options.follow, resource_claims=options.resource_claims, shared_volumes=options.shared_volumes
    )
    role = manifests.cluster_role(rights)
    if not options.keep_namespaces:
        role["rules"].append(manifests.namespace_cleaning_rule())
    _, viewer, viewers = manifests.account(namespace, name=manifests.VIEWER)
    found = [
        *manifests.account(namespace),
        role,
        viewer,
        viewers,
        manifests.cluster_role(
            (*daemon.LOWER_VIEWER, *USAGE_SOURCES[options.usage_source]), name=manifests.VIEWER
        ),
    ]
    if options.legacy_token:
        return [*found, *(manifests.legacy_token(namespace, name=name) for name in manifests.ACCOUNTS)]
    return [*found, *manifests.renewal(namespace, daemon.LOWER_RENEWAL)]


def conflict(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return why an existing object of the lower cluster must not be used for the accounts; empty: it may be used.

    Args:
        found: the existing object.
        wanted: the object of ``objects`` with the same kind and name. Namespaces and Secrets are always
            accepted.
    """
    kind, metadata = wanted["kind"], found.get("metadata") or {}
    if kind in {"Namespace", "Secret"}:
        return ""
    space = metadata.get("namespace")
    what = f"{kind} {f'{space}/' if space else ''}{metadata.get('name')}"
    if (metadata.get("labels") or {}).get(_LABEL) != manifests.NAME:
        return (
            f"the lower cluster has a {what} that is not virtual-node's (no label {_LABEL}: {manifests.NAME}): remove "
            "or rename it first, or label it if it is to be used"
        )
    had, role = found.get("roleRef"), wanted.get("roleRef")
    if role and had != role:
        bound = f"{(had or {}).get('kind')} {(had or {}).get('name')}"
        where = f" --namespace {space}" if space else ""
        return (
            f"{what} of the lower cluster binds {bound} instead of {role['kind']} {role['name']}, and Kubernetes does "
            f"not change that: 'kubectl delete {kind.lower()} {metadata.get('name')}{where}' there, then run the "
            "command again"
        )
    spaces = {str(subject.get("namespace")) for subject in wanted.get("subjects") or ()}
    others = [each for each in found.get("subjects") or () if str(each.get("namespace")) not in spaces]
    if others:
        named = ", ".join(
            f"{item.get('kind')} {item.get('namespace', '')}/{item.get('name')}" for item in others
        )
        return (
            f"{what} of the lower cluster is for {named}, which would lose its rights: give the --account-namespace of "
            "that account"
        )
    return ""


async def apply(client: Client, body: Mapping[str, Any]) -> None:
    """Create an object, or update its rules, subjects and ``stringData``.

    An existing token Secret stays unchanged, because its controller fills it.

    Raises:
        ConfigError: an object of that name must not be changed, see ``conflict``.
    """
    resource, name, namespace = (
        KINDS[body["kind"]],
        body["metadata"]["name"],
        body["metadata"].get("namespace"),
    )
    try:
        await client.create(resource, body, namespace=namespace)
        output.note(f"created {body['kind']} {name}")
    except AlreadyExists:
        if body["kind"] not in {"Namespace", "Secret"}:
            found = await client.get(resource, name, namespace=namespace)
            if why := conflict(found, body):
                raise ConfigError(why) from None
        if patch := {key: body[key] for key in ("rules", "stringData", "subjects") if key in body}:
            await client.patch(resource, name, patch, namespace=namespace)
            output.note(f"updated {body['kind']} {name}")


@dataclass(frozen=True, slots=True)
class Proxy:
    """What a kubeconfig needs to use the proxy in front of a lower cluster."""

    url: str
    server: str
    """URL of the API server as the proxy reaches it."""
    ca: str
    certificate: str
    key: str


async def kubeconfig(lower: Client, options: argparse.Namespace, proxy: Proxy | None = None) -> str:
    """Return an account's kubeconfig, which reads the token from the file ``token`` beside it.

    Args:
        lower: client of the lower cluster.
        options: ``account_namespace``, ``name`` and ``server`` of the command line.
        proxy: leads to the lower cluster; None: it is reached directly.

    Raises:
        ConfigError: the lower cluster does not publish its CA.
    """
    (authority,) = await _filled(
        lower, resources.CONFIG_MAPS, "kube-root-ca.crt", options.account_namespace, ("ca.crt",)
    )
    return _kubeconfig(lower, options, authority, proxy)


def _kubeconfig(
    lower: Client, options: argparse.Namespace, authority: str, proxy: Proxy | None, *, token: str = ""
) -> str:
    server = options.server or (proxy.server if proxy else lower.config.server)
    ca = _base64(authority + (f"\n{proxy.ca}" if proxy else ""))
    made = manifests.token_kubeconfig(cluster=options.name, server=server, ca=ca, token=token)
    if proxy is not None:
        made["clusters"][0]["cluster"]["proxy-url"] = proxy.url
        pair = {"client-certificate-data": proxy.certificate, "client-key-data": proxy.key}
        made["users"][0]["user"] |= {key: _base64(value) for key, value in pair.items()}
    return yaml.safe_dump(made, sort_keys=False)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def new_token(lower: Client, options: argparse.Namespace, account: str) -> tuple[str, str]:
    """Request a new token of an account; return the token and its expiry time (RFC 3339)."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], "expirationSeconds": int(options.token_duration)},
    }
    made = await lower.create(
        resources.SERVICE_ACCOUNTS,
        body,
        namespace=options.account_namespace,
        name=account,
        subresource="token",
    )
    return made["status"]["token"], made["status"]["expirationTimestamp"]


async def secret(
    lower: Client, options: argparse.Namespace, account: str, proxy: Proxy | None = None
) -> dict[str, Any]:
    """Return the Secret for the upper cluster, with a new token of an account; see ``kubeconfig``.

    Raises:
        ConfigError: the lower cluster did not write the account's token or its own CA in time.
    """
    name = manifests.secret_name(options.name, account)
    if options.legacy_token:
        token, ca = await _filled(
            lower, resources.SECRETS, f"{account}-token", options.account_namespace, ("token", "ca.crt")
        )
        authority, token = (base64.b64decode(each).decode() for each in (ca, token))
        text = _kubeconfig(lower, options, authority, proxy, token=token)
        return manifests.kubeconfig_secret(name, options.namespace, text)
    text = await kubeconfig(lower, options, proxy)
    token, expires = await new_token(lower, options, account)
    output.note(f"token of {account} expires {expires}")
    return manifests.kubeconfig_secret(name, options.namespace, text, token=token)


async def _filled(
    lower: Client, resource: Resource, name: str, namespace: str, fields: Sequence[str]
) -> list[str]:
    """Wait until the lower cluster has written fields of an object's data, and return them.

    Raises:
        ConfigError: the lower cluster did not write the fields in time.
    """

    async def values() -> list[str]:
        data = (await find(lower, resource, name, namespace=namespace) or {}).get("data") or {}
        return [str(data[field]) for field in fields] if all(data.get(field) for field in fields) else []

    if written := await waiting.until(values, seconds=_FILLED_SECONDS, every=0.1):
        return written
    raise ConfigError(
        f"the lower cluster did not write {', '.join(fields)} of {resource.kind} {namespace}/{name} "
        f"within {_FILLED_SECONDS} s"
    )
