"""Verifies and removes the accounts that ``lower-cluster join`` created in a lower cluster."""

from __future__ import annotations

import argparse

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.reads import find
from controller_runtime.errors import ConfigError
from virtual_node.commands.lower_cluster import account as lower_account
from virtual_node.commands.lower_cluster.join_parts import is_marked, joined_as, say
from virtual_node.config import program
from virtual_node.controllers.namespaces.contents import Leftovers, UnknownError
from virtual_node.rights import manifests


async def refuse_another_cluster(
    options: argparse.Namespace, lower: Client, *, cluster_id: str, is_in_use: bool
) -> None:
    """Refuse a lower cluster that was not joined under the leaving name, because its accounts must stay.

    Args:
        options: ``account_namespace``, ``client_kubeconfig`` and ``name`` of the command line.
        lower: client of the lower cluster.
        cluster_id: identity of the upper cluster.
        is_in_use: whether the release still has the cluster, so that no earlier ``leave`` removed the
            annotation of ``join`` from the account.

    Raises:
        ConfigError: the kubeconfig leads to another lower cluster.
    """
    account = await find(
        lower, resources.SERVICE_ACCOUNTS, manifests.NAME, namespace=options.account_namespace
    )
    joined = joined_as(account or {}).get(cluster_id, "")
    if joined == options.name or not (joined or is_in_use):
        return
    found = f"is joined as {joined}" if joined else "is not joined to this upper cluster"
    raise ConfigError(
        f"the lower cluster of {options.client_kubeconfig} {found}, by the account in namespace "
        f"{options.account_namespace}: give the kubeconfig of {options.name} and the --account-namespace that it joined "
        f"with. If {options.name} was installed again, '{program.name('lower-cluster')} join {options.name}' first"
    )


async def remove_account(options: argparse.Namespace, lower: Client, *, cluster_id: str) -> None:
    """Delete the account objects that ``join`` created, unless another upper cluster uses them.

    Args:
        options: ``account_namespace``, ``keep_namespaces``, ``legacy_token``, ``usage_source``,
            ``resource_claims``, ``shared_volumes`` and ``dry_run`` of the command line.
        lower: client of the lower cluster.
        cluster_id: identity of the upper cluster.
    """
    space = options.account_namespace
    account = await find(lower, resources.SERVICE_ACCOUNTS, manifests.NAME, namespace=space)
    if account is not None:
        users = joined_as(account)
        if cluster_id in users:
            patch = {"metadata": {"annotations": {f"{names.JOINED_PREFIX}{cluster_id}": None}}}
            await lower.patch(resources.SERVICE_ACCOUNTS, manifests.NAME, patch, namespace=space)
        others = {*users} - {cluster_id} or await _other_virtual_nodes(lower)
        if others:
            say("account", f"is kept: others use it: {', '.join(sorted(others))}")
            return
    done, kept = [], []
    # The namespace is the first object. It is deleted last, and only if it is empty.
    space_body, *bodies = lower_account.objects(options)
    for body in reversed(bodies):
        resource, metadata = lower_account.KINDS[body["kind"]], body["metadata"]
        what, where = f"{body['kind']} {metadata['name']}", metadata.get("namespace")
        found = await find(lower, resource, metadata["name"], namespace=where)
        if found is not None and is_marked(found):
            await lower.delete(resource, metadata["name"], namespace=where, uid=found["metadata"]["uid"])
            done.append(what)
        elif found is not None:
            kept.append(f"{what} (join did not make it)")
    what = f"{space_body['kind']} {space}"
    why = await _delete_namespace(lower, space, cluster_id=cluster_id, dry_run=options.dry_run)
    if why is None:
        done.append(what)
    elif why:
        kept.append(f"{what} ({why})")
    parts = [f"{'would remove' if options.dry_run else 'removed'} {', '.join(done)}"] if done else []
    parts += [f"kept {', '.join(kept)}"] if kept else []
    say("account", "; ".join(parts) or "is gone already")


async def _other_virtual_nodes(lower: Client) -> set[str]:
    """Return virtual nodes with pods in the lower cluster, which may use the account without ``join``.

    Pods of the leaving virtual nodes are gone by now.
    """
    listed = await lower.list(resources.PODS, label_selector=names.LABEL_UPPER_CLUSTER)
    return {
        f"virtual node {one.labels.get(names.LABEL_NODE, 'unknown')} of upper cluster "
        f"{one.labels[names.LABEL_UPPER_CLUSTER]}"
        for one in listed.items
    }


async def _delete_namespace(lower: Client, name: str, *, cluster_id: str, dry_run: bool) -> str | None:
    """Delete the accounts' namespace if ``join`` created it and it is empty.

    Returns:
        Why the namespace is kept. Empty: there was none. None: the namespace was deleted.
    """
    found = await find(lower, resources.NAMESPACES, name)
    if found is None:
        return ""
    if not is_marked(found):
        return "join did not make it"
    try:
        # A dry run has not removed the accounts, so they would count as content.
        others = [] if dry_run else (await Leftovers(lower, cluster_id).find(name, upper_name=name)).others
    except UnknownError as error:
        return str(error)
    if others:
        return f"it has {', '.join(others)}"
    await lower.delete(resources.NAMESPACES, name, uid=found["metadata"]["uid"])
    return None
