"""``virtual-node lower-cluster register``: a least-privilege account in a lower cluster, and its kubeconfig.

Prints the kubeconfig's Secret for the upper cluster, or creates it there with ``--kubeconfig``. Doing it twice brings
the rights up to date and changes nothing else.
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
from controller_runtime.errors import AlreadyExists, ConfigError
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
}
_TOKEN_SECONDS = 30
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
    secret = asyncio.run(_register(options, objects))
    if options.kubeconfig:
        where = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"
        print(f"Secret {where} holds the kubeconfig of lower cluster {options.name}.")  # noqa: T201 - the answer
    else:
        print(yaml.safe_dump(secret, sort_keys=False).rstrip())  # noqa: T201 - the answer
    return 0


def _objects(options: argparse.Namespace) -> list[dict[str, Any]]:
    role = manifests.cluster_role(rights.LOWER)
    if not options.keep_namespaces:
        role["rules"].append(manifests.namespace_cleaning_rule())
    return [*manifests.account(options.account_namespace), role]


async def _register(options: argparse.Namespace, objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    async with connect.by_file(
        options.client_kubeconfig, context=options.client_context, agent=_AGENT
    ) as lower:
        config = lower.config
        for body in objects:
            await _apply(lower, body)
        token, ca = await _token(lower, options.account_namespace)
    text = yaml.safe_dump(
        manifests.token_kubeconfig(
            cluster=options.name, server=options.server or config.server, ca=ca, token=token
        ),
        sort_keys=False,
    )
    secret = manifests.kubeconfig_secret(f"virtual-node-{options.name}", options.namespace, text)
    if options.kubeconfig:
        async with connect.by_file(options.kubeconfig, agent=_AGENT) as upper:
            await _apply(upper, secret)
    return secret


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


async def _token(lower: Client, namespace: str) -> tuple[str, str]:
    """The account's token and the cluster's CA (base64), once the token controller has written them."""
    for _ in range(_TOKEN_SECONDS * 10):
        secret = await lower.get(resources.SECRETS, f"{manifests.NAME}-token", namespace=namespace)
        data = secret.get("data") or {}
        if data.get("token") and data.get("ca.crt"):
            return base64.b64decode(data["token"]).decode(), str(data["ca.crt"])
        await asyncio.sleep(0.1)
    raise ConfigError(
        f"the lower cluster gave ServiceAccount {namespace}/{manifests.NAME} no token within {_TOKEN_SECONDS} s"
    )


def _parser() -> Parser:
    parser = Parser(
        program.name(),
        "lower-cluster",
        about="A least-privilege account in a lower cluster, and its kubeconfig: a ServiceAccount with exactly the "
        "rights that a virtual node needs, and a Secret for the upper cluster. Doing it twice brings the rights up to "
        "date and changes nothing else.",
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
        "--kubeconfig", default="", metavar="FILE", help="upper cluster's: create the Secret there"
    )
    parser.add_argument(
        "--namespace",
        type=label,
        default="kube-system",
        metavar="NS",
        help="of the Secret above (kube-system)",
    )
    return parser
