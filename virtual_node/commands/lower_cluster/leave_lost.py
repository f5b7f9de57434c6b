"""Implements ``lower-cluster leave --lost``: when it is allowed, and what stays in the lower cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.reads import find
from controller_runtime.errors import ApiError, ConfigError, Forbidden, Unauthorized
from virtual_node.commands.common import connect
from virtual_node.commands.lower_cluster.join_parts import joined_as, lower_client
from virtual_node.config import program
from virtual_node.rights import manifests

_KINDS = "pods,services,endpointslices.discovery.k8s.io,configmaps,secrets"


async def require_answer(options: argparse.Namespace, lower: Client) -> None:
    """Check that the lower cluster answers a version request, before anything is changed.

    Raises:
        ConfigError: the cluster does not answer; the message suggests ``--lost``.
        ApiError: the cluster answers but refuses the request.
    """
    try:
        await lower.version()
    except (Forbidden, Unauthorized):
        raise
    except ApiError as error:
        trouble = connect.explain(
            error, lower.config, path=options.client_kubeconfig, context=options.client_context
        )
        raise ConfigError(
            f"{trouble}. If the lower cluster is permanently lost: '{program.name('lower-cluster')} leave "
            f"{options.name} "
            "--lost' changes the upper cluster alone"
        ) from None


async def require_unreachable(options: argparse.Namespace) -> None:
    """Refuse ``--lost`` if a kubeconfig was given and its cluster answers.

    Raises:
        ConfigError: the cluster answers, or the kubeconfig cannot be used.
    """
    if not options.client_kubeconfig:
        return
    async with lower_client(options) as lower:
        try:
            await lower.version()
        except (Forbidden, Unauthorized):
            pass  # A refusal is also an answer.
        except ApiError:
            return
    raise ConfigError(
        f"the lower cluster of {options.client_kubeconfig} answers: run the command without --lost, so that it is "
        "cleaned, too"
    )


def leftover_report(options: argparse.Namespace, *, cluster_id: str, nodes: Sequence[str]) -> list[str]:
    """Return what stays in the lower cluster and the commands that remove it, as lines.

    Args:
        options: ``name``, ``account_namespace`` and ``client_kubeconfig`` of the command line.
        cluster_id: identity of the upper cluster.
        nodes: virtual nodes of the lower cluster.
    """
    file = options.client_kubeconfig or "ADMIN_KUBECONFIG"
    own = options.account_namespace
    again = f"{program.name('lower-cluster')} leave {options.name} --client-kubeconfig {file}"
    again += "" if own == "virtual-node" else f" --account-namespace {own}"
    head = (
        f"is not cleaned: pods and objects with label {names.LABEL_UPPER_CLUSTER}={cluster_id}, and the accounts in "
        f"namespace {own}, are left there. When it answers again, this removes them:"
    )
    found = [head]
    if more := sorted({*nodes} - {options.name}):
        selector = f"{names.LABEL_UPPER_CLUSTER}={cluster_id},{names.LABEL_NODE} in ({','.join(more)})"
        found.append(f"kubectl --kubeconfig {file} delete {_KINDS} --all-namespaces --selector '{selector}'")
    return [*found, again]


async def is_joined(options: argparse.Namespace, lower: Client, *, cluster_id: str) -> bool:
    """Report whether the account in the lower cluster is marked as joined under ``options.name``."""
    account = await find(
        lower, resources.SERVICE_ACCOUNTS, manifests.NAME, namespace=options.account_namespace
    )
    if account is None:
        return False
    return bool(joined_as(account).get(cluster_id) == options.name)
