"""``virtual-node lower-cluster leave``: reverts ``join`` in an order that loses nothing.

First the virtual node is cordoned, and its pods terminate while it still runs. Then the release is upgraded
without the cluster. Then leftovers in the lower cluster, the Node, the account and the Secrets are removed.
``leave`` can be repeated after an interruption, because the Secrets, which prove that ``join`` added the
cluster, are removed last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.pod.conditions import is_finished
from controller_runtime import resources
from controller_runtime.apimachinery.readable import some
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound, Unauthorized
from controller_runtime.objects import Object
from virtual_node.commands.cleanup import command
from virtual_node.commands.cleanup.command import dry_run_client
from virtual_node.commands.cleanup.lower import LowerCleanup
from virtual_node.commands.cleanup.upper import UpperCleanup
from virtual_node.commands.common import connect
from virtual_node.commands.lower_cluster import account as lower_account
from virtual_node.commands.lower_cluster import dns, helm_release, tunnel, values_file
from virtual_node.commands.lower_cluster.applied import is_marked, say
from virtual_node.commands.lower_cluster.helm_release import Release
from virtual_node.commands.lower_cluster.join import (
    AGENT,
    find_release,
    identity,
    joined_as,
    lower_client,
    read_values,
    write_values,
)
from virtual_node.config import program
from virtual_node.controllers.namespaces import Leftovers, UnknownError
from virtual_node.examine.leases import lease_age
from virtual_node.rights import manifests
from virtual_node.translate.nodes.node import is_real

_GONE_SECONDS = 5.0
"""Seconds within which a process that is still terminating may register its Node again."""
_NEXT = (
    "Move the pods away first, then run the command again: '{drain} {nodes}'. With --force the pods are deleted, and data "
    "of volumes stays in the lower cluster"
)
_LOST_NEXT = (
    "The lower cluster does not answer, so they cannot end in order: with --force the pods are removed from the upper "
    "cluster, and their controllers make new ones. They may still run in the lower cluster, and data of volumes is there"
)
_KINDS = "pods,services,endpointslices.discovery.k8s.io,configmaps,secrets"


async def run(options: argparse.Namespace) -> None:
    """Remove a lower cluster from the Helm release.

    Args:
        options: the parsed command line.

    Raises:
        ConfigError: the cluster has pods or data, or a step failed; the message names the next step.
    """
    if options.lost:
        await require_unreachable(options)
        async with connect.upper(options, agent=AGENT) as upper:
            await Leave(options, upper, None, await find_release(upper, options)).run()
        return
    async with connect.upper(options, agent=AGENT) as upper, lower_client(options) as lower:
        await require_answer(options, lower)
        await Leave(options, upper, lower, await find_release(upper, options)).run()


def holding(pods: Sequence[Object], volumes: Sequence[Object]) -> list[str]:
    """Return what prevents a cluster from leaving: unfinished pods and bound volumes, by name.

    DaemonSets re-create their pods until the Node is gone, so these pods do not count, as for ``kubectl drain``.
    """
    running = [
        f"pod {pod.key}"
        for pod in pods
        if not is_finished(pod.status)
        and not any(owner.get("kind") == "DaemonSet" for owner in pod.metadata.owner_references)
    ]
    bound = [f"volume {volume.name}" for volume in volumes if (volume.status or {}).get("phase") == "Bound"]
    return [*running, *bound]


class Leave:
    """The steps of ``leave``. Each can be repeated safely."""

    def __init__(
        self, options: argparse.Namespace, upper: Client, lower: Client | None, release: Release
    ) -> None:
        """Prepare the steps; a dry run wraps the clients so that nothing is written.

        Args:
            options: the parsed command line.
            upper: client of the upper cluster.
            lower: client of the lower cluster; None: it is lost, and only the upper cluster is changed.
            release: the release, or a release made of the values file.
        """
        self._options = options
        self._plain = upper
        dry = options.dry_run
        self._upper = dry_run_client(upper, _would("upper")) if dry else upper
        self._lower = dry_run_client(lower, _would("lower")) if dry and lower else lower
        self._release = release
        self._entry = helm_release.cluster(release.values, options.name)

    async def run(self) -> None:
        """Run all steps.

        Raises:
            ConfigError: the cluster is in use, join did not create it, the kubeconfig leads to another
                cluster, or a step failed.
        """
        options, lower = self._options, self._lower
        secrets = await self._secrets()
        self._id = str(self._release.values.get("clusterId") or await identity(self._plain))
        if self._entry is None and not secrets:
            # After --lost, only the account in the lower cluster still proves that the cluster was joined.
            if lower is None or not await is_joined(options, lower, cluster_id=self._id):
                say("left", f"{options.name} is not in the release, and has no Secret: nothing to do")
                return
        elif not any(is_marked(each) for each in secrets):
            raise ConfigError(
                f"join did not make cluster {options.name}: its Secrets carry no annotation "
                f"{names.ANNOTATION_CREATED_BY}. Remove it by hand: docs/operate/add-a-cluster.md, Remove a cluster"
            )
        if lower is not None:
            await refuse_another_cluster(
                options, lower, cluster_id=self._id, is_in_use=self._entry is not None
            )
        nodes = await self._nodes()
        self._cleanup = UpperCleanup(
            self._upper, nodes=nodes, clusters=[options.name], say=self._progress("upper")
        )
        await self._end_pods(nodes)
        if options.values and self._entry is not None:
            text = values_file.removed(read_values(options), options.name, source=options.values)
            write_values(options, text)
            return
        if options.values and not options.dry_run:
            await refuse_running(self._plain, nodes)
        await self._values()
        if lower is not None:
            await self._clean(lower)
        await self._remove()
        await self._remove_programs()
        for secret in secrets:
            await self._delete_secret(secret)
        if lower is None:
            for line in leftover_report(options, cluster_id=self._id, nodes=nodes):
                say("lower", line)
        say("left", f"{options.name}{' would leave' if options.dry_run else ' has left'}")

    def _progress(self, step: str) -> Callable[[str], None]:
        """Return a function that prints a line of a step, or nothing in a dry run, which prints objects instead."""
        return (lambda _line: None) if self._options.dry_run else (lambda line: say(step, line))

    async def _secrets(self) -> list[dict[str, Any]]:
        wanted = [manifests.secret_name(self._options.name, account) for account in manifests.ACCOUNTS]
        space = self._options.namespace
        found = [await find(self._upper, resources.SECRETS, name, namespace=space) for name in wanted]
        return [each for each in found if each is not None]

    async def _nodes(self) -> list[str]:
        """Return the cluster's virtual nodes: those of its entry, and those registered for the cluster.

        A name that a real Node has is left out, because a virtual node refuses to run under such a name.
        """
        selector = f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL},{names.LABEL_LOWER_CLUSTER}={self._options.name}"
        listed = await self._upper.list(resources.NODES, label_selector=selector)
        known = helm_release.node_names(self._entry) if self._entry else []
        found = {*known, *(item.name for item in listed.items)}
        objects = {name: await find(self._upper, resources.NODES, name) for name in found}
        return sorted(name for name, each in objects.items() if each is None or not is_real(each))

    async def _end_pods(self, nodes: Sequence[str]) -> None:
        """Cordon the nodes, then delete their pods; without ``--force``, refuse if the cluster is in use.

        Raises:
            ConfigError: the cluster is in use; nodes cordoned here are uncordoned again.
        """
        before = [one for node in nodes if (one := await find(self._upper, resources.NODES, node))]
        open_ = [
            each["metadata"]["name"] for each in before if not (each.get("spec") or {}).get("unschedulable")
        ]
        await self._cleanup.cordon()
        pods: list[Object] = []
        for node in nodes:
            pods += (await self._upper.list(resources.PODS, field_selector=f"spec.nodeName={node}")).items
        volumes = await self._upper.list(
            resources.PERSISTENT_VOLUMES, label_selector=f"{names.LABEL_LOWER_CLUSTER}={self._options.name}"
        )
        held = holding(pods, volumes.items)
        if held and not self._options.force:
            for node in open_:
                await self._upper.patch(resources.NODES, node, {"spec": {"unschedulable": None}})
                self._progress("upper")(f"node {node} uncordoned")
            raise ConfigError(
                f"cluster {self._options.name} is in use: {some(held, limit=5)}. "
                + (
                    _LOST_NEXT
                    if self._lower is None
                    else _NEXT.format(drain=program.name("drain"), nodes=" ".join(nodes))
                )
            )
        # Pods of a lost cluster cannot terminate gracefully, so they are force-deleted immediately.
        seconds = self._options.timeout if self._lower is not None else -1.0
        await self._cleanup.delete_pods(deadline=asyncio.get_running_loop().time() + seconds)
        if not self._options.dry_run:
            say("pods", "none run there" if not held else f"ended: {len(held)} were there")

    async def _values(self) -> None:
        options, release = self._options, self._release
        if self._entry is None:
            if not options.values:
                say("helm", f"revision {release.revision} does not have cluster {options.name}")
            return
        if options.dry_run:
            say("helm", f"would upgrade {release.name} without cluster {options.name}")
            return
        say("helm", f"upgrading {release.name}; waiting for its pods")
        revision = await helm_release.upgrade(
            self._plain, options, lambda values: helm_release.without_cluster(values, options.name),
            why=f"lower cluster {options.name} left",
        )  # fmt: skip
        say("helm", f"revision {revision} does not have it. Take it out of a values file of yours, too")

    async def _clean(self, lower: Client) -> None:
        """Remove what the virtual nodes created in the lower cluster."""
        namespaces = NamespaceConfig()
        with contextlib.suppress(ConfigError):  # no virtual node has run with settings that are not valid
            namespaces = helm_release.namespaces(self._entry or {})
        cleaning = LowerCleanup(
            lower,
            cluster_id=self._id,
            nodes=await self._nodes() or [self._options.name],
            namespaces=namespaces,
            upper_claims=await self._cleanup.volumes.claims(),
            say=self._progress("lower"),
        )
        await cleaning.run()

    async def _remove(self) -> None:
        """Remove the Nodes and unbound mirror volumes, repeatedly for ``_GONE_SECONDS``."""
        await self._cleanup.remove(namespace="", leases=[], secrets=[], driver=False)
        for _ in range(0 if self._options.dry_run else int(_GONE_SECONDS)):
            await asyncio.sleep(1)
            await self._cleanup.remove(namespace="", leases=[], secrets=[], driver=False)

    async def _remove_programs(self) -> None:
        """Remove name server, tunnel and account."""
        options, lower = self._options, self._lower
        if lower is not None:
            await dns.remove(options, lower, cluster_id=self._id)
        await tunnel.remove(options, self._upper, lower, cluster_id=self._id)
        if lower is not None:
            await remove_account(options, lower, cluster_id=self._id)

    async def _delete_secret(self, found: dict[str, Any]) -> None:
        name = found["metadata"]["name"]
        if not is_marked(found):
            say("secret", f"{self._options.namespace}/{name} is kept: join did not make it")
            return
        try:
            await self._upper.delete(
                resources.SECRETS, name, namespace=self._options.namespace, uid=found["metadata"]["uid"]
            )
        except NotFound:
            return
        if not self._options.dry_run:
            say("secret", f"{self._options.namespace}/{name} removed")


def _would(where: str) -> Callable[[str], None]:
    return lambda line: command.print_change(f"{where:<8}  {line.partition(': ')[2]}")


async def refuse_running(upper: Client, nodes: Sequence[str]) -> None:
    """Refuse to remove a cluster while one of its virtual nodes runs, which a held and renewed Lease shows.

    Raises:
        ConfigError: a virtual node still runs.
    """
    for node in nodes:
        age = lease_age(
            await find(upper, resources.LEASES, node, namespace=names.NODE_LEASES), datetime.now(UTC)
        )
        if age is not None and age.holder and not age.is_expired():
            raise ConfigError(
                f"virtual node {node} still works: apply the values file without it, then run the command again"
            )


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
    joined = await _joined_name(options, lower, cluster_id=cluster_id)
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
        f"virtual node {each.labels.get(names.LABEL_NODE, 'unknown')} of upper cluster "
        f"{each.labels[names.LABEL_UPPER_CLUSTER]}"
        for each in listed.items
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


async def require_answer(options: argparse.Namespace, lower: Client) -> None:
    """Check that the lower cluster answers a version request, before anything is changed.

    Raises:
        ConfigError: the cluster does not answer; the message suggests ``--lost``.
        ApiError: the cluster answers but refuses the request.
    """
    try:
        await lower.version(timeout=lower.timeout)
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
            await lower.version(timeout=lower.timeout)
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
    return bool(await _joined_name(options, lower, cluster_id=cluster_id) == options.name)


async def _joined_name(options: argparse.Namespace, lower: Client, *, cluster_id: str) -> str:
    """Return the name under which the lower cluster is joined to an upper cluster; empty: it is not joined."""
    account = await find(
        lower, resources.SERVICE_ACCOUNTS, manifests.NAME, namespace=options.account_namespace
    )
    return joined_as(account or {}).get(cluster_id, "")
