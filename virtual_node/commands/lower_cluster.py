"""``virtual-node lower-cluster register``: a least-privilege account in a lower cluster, and its kubeconfig.

Makes a second, read-only account for the multi-scheduler. Prints the Secrets with their kubeconfigs for the upper
cluster, or creates them there with ``--kubeconfig``. Doing it twice brings the rights up to date and makes new tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from controller_runtime import resources
from controller_runtime.client import Client
from controller_runtime.command_line import Parser
from controller_runtime.errors import AlreadyExists, ConfigError, NotFound
from controller_runtime.flags import duration
from controller_runtime.resources import Resource
from virtual_node import manifests, program, rights
from virtual_node.command_line import label
from virtual_node.commands import connect

_CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
_KINDS = {
    "Namespace": resources.NAMESPACES,
    "ServiceAccount": resources.SERVICE_ACCOUNTS,
    "Secret": resources.SECRETS,
    "ClusterRole": _CLUSTER_ROLES,
    "ClusterRoleBinding": _BINDINGS,
    "Role": Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    "RoleBinding": Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
}
_FILLED_SECONDS = 30
_ACCOUNTS = {manifests.NAME: "", manifests.VIEWER: "-viewer"}
"""Account in the lower cluster → what its Secret's name ends with."""
_AGENT = "virtual-node-register"


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 when it is done, 2 for trouble."""
    options = _parser().parse_args(argv)
    objects = _objects(options)
    if options.action == "manifest":
        print(yaml.safe_dump_all(objects, sort_keys=False).rstrip())  # noqa: T201 - the answer
        return 0
    if not options.client_kubeconfig:
        raise ConfigError("--client-kubeconfig: required: an administrator's kubeconfig of the lower cluster")
    secrets = asyncio.run(_register(options, objects))
    if options.kubeconfig:
        for secret in secrets:
            where = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"
            print(f"Secret {where} holds a kubeconfig of lower cluster {options.name}.")  # noqa: T201 - the answer
    else:
        print(yaml.safe_dump_all(secrets, sort_keys=False).rstrip())  # noqa: T201 - the answer
    return 0


def _objects(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both accounts with their permissions: the virtual node's, and a read-only one for the multi-scheduler."""
    namespace = options.account_namespace
    role = manifests.cluster_role(rights.LOWER)
    if not options.keep_namespaces:
        role["rules"].append(manifests.namespace_cleaning_rule())
    _, viewer, viewers = manifests.account(namespace, name=manifests.VIEWER)
    found = [
        *manifests.account(namespace),
        role,
        viewer,
        viewers,
        manifests.cluster_role(rights.LOWER_VIEWER, name=manifests.VIEWER),
    ]
    if options.legacy_token:
        return [*found, *(manifests.legacy_token(namespace, name=name) for name in _ACCOUNTS)]
    return [*found, *manifests.renewal(namespace, rights.LOWER_RENEWAL)]


async def _register(
    options: argparse.Namespace, objects: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    secrets = []
    async with connect.by_file(
        options.client_kubeconfig, context=options.client_context, agent=_AGENT
    ) as lower:
        for body in objects:
            await _apply(lower, body)
        for account, suffix in _ACCOUNTS.items():
            name = f"virtual-node-{options.name}{suffix}"
            secrets.append(await _secret(lower, options, account, name))
    if options.kubeconfig:
        async with connect.by_file(options.kubeconfig, agent=_AGENT) as upper:
            for secret in secrets:
                await _apply(upper, secret)
    return secrets


async def _secret(lower: Client, options: argparse.Namespace, account: str, name: str) -> dict[str, Any]:
    """The Secret for the upper cluster, with a new token of an account."""
    namespace = options.account_namespace
    server = options.server or lower.config.server
    if options.legacy_token:
        token, ca = await _filled(
            lower, resources.SECRETS, f"{account}-token", namespace, ("token", "ca.crt")
        )
        token = base64.b64decode(token).decode()
        kubeconfig = manifests.token_kubeconfig(cluster=options.name, server=server, ca=ca, token=token)
        return manifests.kubeconfig_secret(name, options.namespace, _text(kubeconfig))
    (authority,) = await _filled(lower, resources.CONFIG_MAPS, "kube-root-ca.crt", namespace, ("ca.crt",))
    ca = base64.b64encode(authority.encode()).decode()
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], "expirationSeconds": int(options.token_duration)},
    }
    made = await lower.create(
        resources.SERVICE_ACCOUNTS, body, namespace=namespace, name=account, subresource="token"
    )
    status = made["status"]
    print(f"token of {account} expires {status['expirationTimestamp']}", file=sys.stderr)  # noqa: T201 - progress
    kubeconfig = manifests.token_kubeconfig(cluster=options.name, server=server, ca=ca)
    return manifests.kubeconfig_secret(name, options.namespace, _text(kubeconfig), token=status["token"])


def _text(kubeconfig: Mapping[str, Any]) -> str:
    return yaml.safe_dump(kubeconfig, sort_keys=False)


async def _apply(client: Client, body: Mapping[str, Any]) -> None:
    """Create, or bring what matters up to date; a token Secret is left to its controller."""
    resource = _KINDS[body["kind"]]
    metadata = body["metadata"]
    namespace = metadata.get("namespace")
    try:
        await client.create(resource, body, namespace=namespace)
        print(f"created {body['kind']} {metadata['name']}", file=sys.stderr)  # noqa: T201 - progress
    except AlreadyExists:
        patch = {key: body[key] for key in ("rules", "stringData", "subjects") if key in body}
        if patch:
            await client.patch(resource, metadata["name"], patch, namespace=namespace)
            print(f"updated {body['kind']} {metadata['name']}", file=sys.stderr)  # noqa: T201 - progress


async def _filled(
    lower: Client, resource: Resource, name: str, namespace: str, fields: Sequence[str]
) -> list[str]:
    """Some fields of the data of an object, once the lower cluster has written them."""
    for _ in range(_FILLED_SECONDS * 10):
        try:
            data = (await lower.get(resource, name, namespace=namespace)).get("data") or {}
        except NotFound:
            data = {}
        if all(data.get(field) for field in fields):
            return [str(data[field]) for field in fields]
        await asyncio.sleep(0.1)
    raise ConfigError(
        f"the lower cluster did not write {', '.join(fields)} of {resource.kind} {namespace}/{name} "
        f"within {_FILLED_SECONDS} s"
    )


def _parser() -> Parser:
    parser = Parser(
        program.name(),
        "lower-cluster",
        about="Least-privilege accounts in a lower cluster, and their kubeconfigs: a ServiceAccount with exactly the "
        "rights that a virtual node needs, one that may only read for the multi-scheduler, and a Secret for the upper "
        "cluster with each. Doing it twice brings the rights up to date and makes new tokens.",
        examples=(
            (
                "Make the account, and the Secret in the upper cluster",
                "lower-cluster register --name tokyo --client-kubeconfig tokyo-admin.yaml --kubeconfig upper.yaml",
            ),
            (
                "Print the Secret instead",
                "lower-cluster register --name tokyo --client-kubeconfig tokyo-admin.yaml",
            ),
            ("What the account is, for those who apply it themselves", "lower-cluster manifest --name tokyo"),
        ),
        exit_codes="0 done, 2 not",
    )
    parser.add_argument(
        "action", choices=("register", "manifest"), help="make the account, or only print what it is"
    )
    parser.add_argument(
        "--name",
        type=label,
        required=True,
        metavar="CLUSTER",
        help="the lower cluster's name in the upper one",
    )
    parser.add_argument(
        "--client-kubeconfig", default="", metavar="FILE", help="an administrator's, of the lower cluster"
    )
    parser.add_argument("--client-context", default="", metavar="CONTEXT", help="its context")
    parser.add_argument(
        "--server", default="", metavar="URL", help="the lower API server as the upper cluster reaches it"
    )
    parser.add_argument(
        "--account-namespace", type=label, default="virtual-node", metavar="NAME", help="below (virtual-node)"
    )
    parser.add_argument("--keep-namespaces", action="store_true", help="do not ask for the right to list everything, "
                        "which removing an empty namespace takes")  # fmt: skip
    parser.add_argument(
        "--token-duration", type=duration, default=30 * 24 * 3600.0, metavar="D",
        help="how long the tokens are valid (720h); the API server may grant less. The virtual node renews them daily",
    )  # fmt: skip
    parser.add_argument(
        "--legacy-token", action="store_true", help="tokens that never expire, inside the kubeconfig: for a kubeconfig "
        "that is not mounted from the Secret, where nothing renews them",
    )  # fmt: skip
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="upper cluster's: create the Secrets there"
    )
    parser.add_argument(
        "--namespace",
        type=label,
        default="kube-system",
        metavar="NS",
        help="of the Secret above (kube-system)",
    )
    return parser
